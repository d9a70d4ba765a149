package tree

import (
	"bytes"
	"io"
	"os"

	"github.com/dozehq/doze/internal/agent/body"
)

// spool keeps bytes that are on their way.
type spool struct {
	temp func() (*os.File, error)
	mem  []byte
	file *os.File // instead of mem
}

// Write appends b.
func (s *spool) Write(b []byte) (int, error) {
	if s.file == nil && len(s.mem)+len(b) <= body.Free {
		s.mem = append(s.mem, b...)
		return len(b), nil
	}
	if s.file == nil {
		f, err := s.temp()
		if err != nil {
			return 0, err
		}
		s.file = f
		if _, err := f.Write(s.mem); err != nil {
			return 0, err
		}
		s.mem = nil
	}
	return s.file.Write(b)
}

// stretch is a part of a spool.
type stretch struct{ from, to int64 }

// part returns a stretch of what was written.
func (s *spool) part(of stretch) io.Reader {
	if s.file == nil {
		return bytes.NewReader(s.mem[of.from:of.to])
	}
	return io.NewSectionReader(s.file, of.from, of.to-of.from)
}

func (s *spool) close() {
	if s.file != nil {
		_ = s.file.Close() // nothing is lost with it
	}
}
