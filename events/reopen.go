package events

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// Reopen goes on with a log whose writer is gone. Its chain is checked first: the error matches [ErrBroken] if it does not
// hold. A last line without an end, as a killed writer leaves it, is cut off. mask and sink are as in [Create].
func Reopen(path string, mask func([]byte) []byte, sink func(Payload)) (_ *Log, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("reopen event log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("reopen event log: %w", err), file.Close())
		}
	}()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	list, head, err := Read(bytes.NewReader(whole))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: it has no whole line", ErrBroken)
	}
	if err := file.Truncate(int64(len(whole))); err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	last := list[len(list)-1]
	l := newLog(file, last.Run, mask, sink)
	l.seq, l.prev = last.Seq, head
	return l, nil
}
