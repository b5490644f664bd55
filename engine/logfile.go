package engine

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// logLimit bounds the daemon's log; the one before it is kept as well.
const logLimit = 4 << 20

// A LogFile is a log of bounded size: when it is full it becomes NAME.1 and a new one begins. It is safe for concurrent use.
type LogFile struct {
	mu   sync.Mutex
	path string
	f    *os.File
	size int64
}

// OpenLog opens or makes the log at path, mode 0600.
func OpenLog(path string) (*LogFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	l := &LogFile{path: path}
	return l, l.open()
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.size = f, fi.Size()
	return nil
}

// Write appends one entry.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > logLimit && l.size > 0 {
		l.f.Close()
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, err
		}
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

// daemonError is the error with which the daemon that wrote last ended, to follow other words, or "".
func (s *State) daemonError() string {
	const tail = 8 << 10
	file, err := os.Open(s.DaemonLog())
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tail {
		if _, err := file.Seek(-tail, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(file, tail))
	if err != nil {
		return ""
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	var last struct{ Level, Err string }
	if json.Unmarshal(data[bytes.LastIndexByte(data, '\n')+1:], &last) != nil || last.Level != slog.LevelError.String() || last.Err == "" {
		return ""
	}
	return " (" + last.Err + ")"
}
