package sbx

import (
	"context"
	"io"
	"os"
	"reflect"
	"sync"
	"time"
)

// stream is one output of a command on its way to the capture and the caller.
type stream struct {
	r       *os.File
	w       io.WriteCloser // masks, captures, passes on
	capture *capture
	relay   *relay        // nil: nobody wants it while it comes
	done    chan struct{} // closed when nothing more is read

	exitWait time.Duration // what used said when the command had exited
	exitRead int64

	mu    sync.Mutex
	waits time.Duration // time spent in reads that are over
	since time.Time     // start of the read under way, if any
	read  int64         // bytes
}

// used gives how long reads have waited in all, and how many bytes came.
func (s *stream) used() (waited time.Duration, read int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waited = s.waits
	if !s.since.IsZero() {
		waited += time.Since(s.since)
	}
	return waited, s.read
}

// next reads once.
func (s *stream) next(buf []byte) (int, error) {
	s.mu.Lock()
	s.since = time.Now()
	s.mu.Unlock()
	n, err := s.r.Read(buf)
	s.mu.Lock()
	s.waits += time.Since(s.since)
	s.since = time.Time{}
	s.read += int64(n)
	s.mu.Unlock()
	return n, err
}

func (s *stream) start() {
	go func() {
		defer close(s.done)
		buf := make([]byte, 32<<10)
		for {
			n, err := s.next(buf)
			if n > 0 {
				if _, failed := s.w.Write(buf[:n]); failed != nil {
					break // the relay keeps the error; the command finds its output closed
				}
			}
			if err != nil {
				break
			}
		}
		_ = s.r.Close()
		_ = s.w.Close()
		if s.relay != nil {
			s.relay.end()
		}
	}()
	if s.relay != nil {
		go s.relay.run()
	}
}

// maxPipe is the most that a pipe holds (Linux, without privilege): a command that has exited left at most so much in it.
const maxPipe = 1 << 20

// drain waits, after the command has exited, until its output is read. It gives up on output that others hold open: when
// reads have waited for grace since the exit, in all, or after grace if more came than the command can have left. Time in
// which the caller takes what came does not count. held reports that it gave up.
func (s *stream) drain(grace time.Duration, over <-chan struct{}) (held bool) {
	waited, _ := s.used() // while another stream was waited for
	timer := time.NewTimer(max(0, grace-(waited-s.exitWait)))
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			return held
		case <-over:
			select {
			case <-s.done: // both
				return held
			default:
			}
			if s.relay != nil {
				s.relay.abandon() // the reading must not wait for it
			}
			_ = s.r.Close()
			<-s.done
			return true // somebody had it open still
		case <-timer.C:
		}
		waited, read := s.used()
		waited -= s.exitWait
		if waited >= grace || read-s.exitRead > maxPipe {
			held = true
			_ = s.r.Close()
			continue // what was read is passed on
		}
		timer.Reset(grace - waited)
	}
}

// passed waits until the caller has taken everything.
func (s *stream) passed(over <-chan struct{}) {
	if s.relay == nil {
		return
	}
	select {
	case <-s.relay.done:
	case <-over:
		s.relay.abandon()
	}
}

// failed is the error of passing the stream on.
func (s *stream) failed(ctx context.Context) error {
	if s == nil || s.relay == nil {
		return nil
	}
	return s.relay.failed(ctx)
}

// sameWriter reports whether a and b are one writer, which two goroutines must not use at once.
func sameWriter(a, b io.Writer) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// inputReader keeps the error of a reader: input that was cut short must not pass for all of it.
type inputReader struct {
	r    io.Reader
	pipe *os.File // to the command
	mu   sync.Mutex
	over bool
	err  error
}

// feed passes the input to the command. One that ends without reading everything is its own business.
func (i *inputReader) feed() {
	_, _ = io.Copy(i.pipe, i)
	i.close()
}

// Read implements io.Reader. Once the command is gone it fails: a reader that gives nothing and no error would be asked for
// ever.
func (i *inputReader) Read(p []byte) (int, error) {
	i.mu.Lock()
	over := i.over
	i.mu.Unlock()
	if over {
		return 0, io.ErrClosedPipe
	}
	n, err := i.r.Read(p)
	if err != nil && err != io.EOF {
		i.mu.Lock()
		if !i.over {
			i.err = err
		}
		i.mu.Unlock()
	}
	return n, err
}

// ended closes the way to a command that is gone. A reader that fails from now on fails nobody.
func (i *inputReader) ended() {
	i.mu.Lock()
	i.over = true
	i.mu.Unlock()
	i.close()
}

func (i *inputReader) close() {
	if i.pipe != nil {
		_ = i.pipe.Close()
	}
}

func (i *inputReader) failed() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// maxRelay bounds what waits for a caller's writer; a command that writes more waits with it.
const maxRelay = 256 << 10

// relay hands output to a caller's writer from a goroutine of its own, so that a writer that blocks holds nobody but
// itself.
type relay struct {
	w          io.Writer
	lock       *sync.Mutex // held during a write, if two streams have one writer
	more, room chan struct{}
	done       chan struct{} // closed when the writer has everything, or failed
	quit       chan struct{} // closed by abandon

	mu    sync.Mutex
	buf   []byte
	ended bool  // nothing more will come
	cut   bool  // abandoned before the writer had everything
	err   error // of the writer
}

func newRelay(w io.Writer, lock *sync.Mutex) *relay {
	return &relay{
		w: w, lock: lock, more: make(chan struct{}, 1), room: make(chan struct{}, 1),
		done: make(chan struct{}), quit: make(chan struct{}),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Write queues p, and waits for room. It fails once the writer has failed; what comes after abandon is dropped.
func (r *relay) Write(p []byte) (int, error) {
	total := len(p)
	for {
		r.mu.Lock()
		if r.err != nil {
			r.mu.Unlock()
			return 0, r.err
		}
		n := min(len(p), maxRelay-len(r.buf))
		r.buf = append(r.buf, p[:n]...)
		r.mu.Unlock()
		p = p[n:]
		if n > 0 {
			signal(r.more)
		}
		if len(p) == 0 {
			return total, nil
		}
		select {
		case <-r.room:
		case <-r.done: // it failed: see above
		case <-r.quit:
			return total, nil
		}
	}
}

// run hands on until there is nothing more, the writer fails, or nobody waits any more.
func (r *relay) run() {
	defer close(r.done)
	var spare []byte
	for {
		r.mu.Lock()
		chunk, ended := r.buf, r.ended
		r.buf, spare = spare[:0], chunk
		r.mu.Unlock()
		if len(chunk) == 0 {
			if ended {
				return
			}
			select {
			case <-r.more:
				continue
			case <-r.quit:
				return
			}
		}
		signal(r.room)
		err := r.write(chunk)
		r.mu.Lock()
		r.err = err
		over := err != nil || r.cut
		r.mu.Unlock()
		if over {
			return
		}
	}
}

func (r *relay) write(chunk []byte) error {
	if r.lock != nil {
		r.lock.Lock()
		defer r.lock.Unlock()
	}
	n, err := r.w.Write(chunk)
	if err == nil && n < len(chunk) {
		err = io.ErrShortWrite
	}
	return err
}

// abandon stops the handing on. A write that blocks is left to return by itself.
func (r *relay) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
		return
	default:
	}
	if !r.cut {
		r.cut = true
		close(r.quit)
	}
}

// failed tells why the writer did not get everything, if so.
func (r *relay) failed(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		return r.err
	case r.cut:
		return ctxError(ctx)
	}
	return nil
}

// end says that nothing more will come.
func (r *relay) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	signal(r.more)
}

// sink captures a stream and queues it for the caller.
type sink struct {
	capture *capture
	relay   *relay
}

// Write implements io.Writer. It fails if the caller's writer has failed.
func (s *sink) Write(p []byte) (int, error) {
	n, _ := s.capture.Write(p)
	if s.relay == nil {
		return n, nil
	}
	return s.relay.Write(p)
}

// capture keeps the first headSize bytes and the last max bytes of what is written to it, in bounded memory.
type capture struct {
	max   int
	head  []byte
	tail  []byte // at most 2*max, cut to the last max when that is reached
	total int64
}

const headSize = 1 << 10

func newCapture(limit int) *capture { return &capture{max: limit} }

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.total += int64(n)
	if room := headSize - len(c.head); room > 0 {
		c.head = append(c.head, p[:min(room, n)]...)
	}
	if n >= c.max {
		c.tail = append(c.tail[:0], p[n-c.max:]...)
		return n, nil
	}
	if len(c.tail)+n > 2*c.max {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-c.max:]...)
	}
	c.tail = append(c.tail, p...)
	return n, nil
}

func (c *capture) bytes() []byte {
	if len(c.tail) > c.max {
		return c.tail[len(c.tail)-c.max:]
	}
	return c.tail
}

func (c *capture) dropped() bool { return c.total > int64(c.max) }
