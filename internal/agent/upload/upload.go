// Package upload keeps files that come in parts until all parts are there. The
// parts are on disk, named by us; what is known of them is in memory and ends
// with the process.
package upload

import (
	"cmp"
	"crypto/md5" //nolint:gosec // clients expect this sum; it is no protection
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/scratch"
)

const (
	// partMax is the highest number of a part.
	partMax = 10_000
	// uploadsMax bounds the memory that uploads take which nobody completes.
	uploadsMax = 1000
	// mistakesMax bounds how many wrong parts an answer names.
	mistakesMax = 32
	// ageMax is how long an upload may be left alone before it is dropped.
	ageMax = 24 * time.Hour
)

// Part describes a part in answers.
type Part struct {
	Number     int       `json:"partNumber"`
	ETag       string    `json:"etag"` // MD5, hexadecimal
	Size       int64     `json:"size"` // bytes
	UploadedAt time.Time `json:"uploadedAt,omitzero"`
}

// Upload describes an upload in answers.
type Upload struct {
	ID          string       `json:"uploadId"`
	Path        string       `json:"path"` // absolute
	Permissions fs.FileMode  `json:"permissions"`
	InitiatedAt time.Time    `json:"initiatedAt"`
	Parts       map[int]Part `json:"parts"`
}

// Store keeps uploads. Its methods may be called at the same time.
type Store struct {
	dir string

	mu   sync.Mutex
	open map[string]*session // guarded by mu, by id
}

// session is an upload that is neither completed nor aborted.
type session struct {
	Upload // Parts is guarded by Store.mu
	expiry *time.Timer
	files  map[int]string // guarded by Store.mu: of the parts
	busy   bool           // guarded by Store.mu: it is being completed
}

// New returns a store that keeps its parts below dir. What is there already is
// deleted.
func New(dir string) *Store {
	_ = os.RemoveAll(dir) // best effort: nothing reads what is left
	return &Store{dir: dir, open: map[string]*session{}}
}

// Begin opens an upload to path. It is Unprocessable when there are too many.
func (s *Store) Begin(path string, permissions fs.FileMode) (Upload, error) {
	id := newID()
	now := time.Now().UTC()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= uploadsMax {
		return Upload{}, doze.Errorf(doze.Unprocessable, "%d uploads are open, which is the most; complete or abort some", uploadsMax)
	}
	up := &session{
		Upload: Upload{ID: id, Path: path, Permissions: permissions, InitiatedAt: now, Parts: map[int]Part{}},
		files:  map[int]string{},
	}
	up.expiry = time.AfterFunc(ageMax, func() { _ = s.Abort(id) }) // it may have just ended
	s.open[id] = up
	return up.Upload, nil
}

// newID returns a random UUID (version 4).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// find returns an open upload, NotFound without one. Preconditions: mu is held.
func (s *Store) find(id string) (*session, error) {
	up := s.open[id]
	switch {
	case up == nil:
		return nil, doze.Errorf(doze.NotFound, "upload not found; it may be completed, aborted or older than %d hours", ageMax/time.Hour)
	case up.busy:
		return nil, doze.Errorf(doze.Conflict, "the upload is being completed")
	}
	up.expiry.Reset(ageMax)
	return up, nil
}

// Put stores a part, in place of an earlier one with the number. What cannot
// be done is Internal, as clients expect; a source that breaks off is Invalid.
func (s *Store) Put(id string, number int, src io.Reader) (Part, error) {
	if number < 1 || number > partMax {
		return Part{}, doze.Errorf(doze.Internal, "partNumber must be 1 to %d", partMax)
	}
	s.mu.Lock()
	_, err := s.find(id)
	s.mu.Unlock()
	if err != nil {
		return Part{}, asInternal(err)
	}
	name, part, err := s.store(id, src)
	if err != nil {
		return Part{}, err
	}
	part.Number = number

	stale, err := s.take(id, part, name)
	if err != nil {
		_ = os.Remove(name)
		_ = os.Remove(filepath.Dir(name)) // fails unless the upload has ended
		return Part{}, asInternal(err)
	}
	if stale != "" {
		_ = os.Remove(stale) // else it goes with the upload
	}
	part.UploadedAt = time.Time{} // the answer is without
	return part, nil
}

// take notes a part that is stored and returns the file that it replaces.
func (s *Store) take(id string, part Part, file string) (stale string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	up, err := s.find(id)
	if err != nil {
		return "", err
	}
	stale = up.files[part.Number]
	up.Parts[part.Number], up.files[part.Number] = part, file
	return stale, nil
}

// store writes a part to a file of its own.
func (s *Store) store(id string, src io.Reader) (name string, part Part, err error) {
	if err := os.MkdirAll(filepath.Join(s.dir, id), 0o700); err != nil {
		return "", part, doze.Wrap(err, doze.Internal, "store the part: %v", errors.Unwrap(err))
	}
	f, err := os.CreateTemp(filepath.Join(s.dir, id), "part-")
	if err != nil {
		return "", part, doze.Wrap(err, doze.Internal, "store the part: %v", errors.Unwrap(err))
	}
	sum := md5.New() //nolint:gosec // see above
	from := &Source{Reader: src}
	err = scratch.Copy(io.MultiWriter(f, sum), from)
	if e := f.Close(); err == nil {
		err = e
	}
	switch {
	case err == nil:
		return f.Name(), Part{ETag: hex.EncodeToString(sum.Sum(nil)), Size: from.N, UploadedAt: time.Now().UTC()}, nil
	case from.Err != nil:
		err = doze.Wrap(err, doze.Invalid, "the body ended early; send the part again")
	default:
		err = doze.Wrap(err, doze.Internal, "store the part: %v", errors.Unwrap(err))
	}
	_ = os.Remove(f.Name())
	return "", part, err
}

// Temp returns an empty file without a name, for what is on its way.
func (s *Store) Temp() (*os.File, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(s.dir, "body-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// A Source remembers whether reading failed, to tell a broken upload from a full
// disk, and how much it has read.
type Source struct {
	io.Reader

	N   int64 // bytes
	Err error
}

func (s *Source) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	s.N += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.Err = err
	}
	return n, err
}

func asInternal(err error) error {
	return doze.Wrap(err, doze.Internal, "%s", doze.Public(err).Message)
}

// Parts returns the parts of an upload in their order. It is NotFound without
// the upload.
func (s *Store) Parts(id string) ([]Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	up, err := s.find(id)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(up.Parts), byNumber), nil
}

func byNumber(a, b Part) int { return cmp.Compare(a.Number, b.Number) }

// List returns all uploads, the oldest first.
func (s *Store) List() []Upload {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Upload, 0, len(s.open))
	for _, up := range s.open {
		u := up.Upload
		u.Parts = maps.Clone(u.Parts)
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b Upload) int {
		return cmp.Or(a.InitiatedAt.Compare(b.InitiatedAt), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Abort forgets an upload and its parts. It is NotFound without one, and a
// Conflict while it is being completed.
func (s *Store) Abort(id string) error {
	s.mu.Lock()
	up, err := s.find(id)
	if err == nil {
		s.forget(up)
	}
	s.mu.Unlock()
	if err == nil {
		s.clear(id)
	}
	return err
}

// forget ends an upload. Preconditions: mu is held.
func (s *Store) forget(up *session) {
	up.expiry.Stop()
	delete(s.open, up.ID)
}

// clear deletes the parts of an upload that has ended. One that is still coming
// in removes itself.
func (s *Store) clear(id string) { _ = os.RemoveAll(filepath.Join(s.dir, id)) }

// Complete gives the wanted parts, put together by their numbers, to write and
// ends the upload. Each part is deleted once it is read, so that the disk does
// not have to hold the file twice; if write fails after that, the upload is
// lost. A missing part and one with another tag are Internal, as clients expect;
// the error names all.
func (s *Store) Complete(id string, wanted []Part, write func(Upload, io.Reader) error) (Upload, error) {
	if len(wanted) == 0 {
		return Upload{}, doze.Errorf(doze.Invalid, "parts is required; list the parts of the file")
	}
	src := &assembly{}
	s.mu.Lock()
	up, err := s.find(id)
	if err == nil {
		src.files, err = up.pick(wanted)
	}
	if err == nil {
		up.busy = true
	}
	s.mu.Unlock()
	if err != nil {
		return Upload{}, err
	}
	err = write(up.Upload, src)
	src.close()

	over := err == nil || src.released // else it can be tried again
	s.mu.Lock()
	if up.busy = false; over {
		s.forget(up)
	}
	s.mu.Unlock()
	if over {
		s.clear(id)
	}
	if over && err != nil {
		p := doze.Public(err)
		return Upload{}, doze.Wrap(err, p.Kind, "%s; the upload is lost, start a new one", p.Message)
	}
	return up.Upload, err
}

// pick returns the files of the wanted parts by their numbers, each once.
// Preconditions: Store.mu is held.
func (up *session) pick(wanted []Part) (files []string, err error) {
	var p doze.Problems
	kind := doze.Invalid
	sorted := slices.SortedFunc(slices.Values(wanted), byNumber)
	for i, w := range sorted {
		field := fmt.Sprintf("part %d", w.Number)
		switch part, ok := up.Parts[w.Number]; {
		case i > 0 && sorted[i-1].Number == w.Number:
			p.Add(field, "is listed twice")
		case w.Number < 1 || w.Number > partMax:
			p.Add(field, "is none: partNumber must be 1 to %d", partMax)
			kind = doze.Internal
		case !ok:
			p.Add(field, "is missing; upload it first")
			kind = doze.Internal
		case part.ETag != w.ETag:
			p.Add(field, "has another etag; upload it again")
			kind = doze.Internal
		}
		if len(p) == mistakesMax {
			break
		}
		files = append(files, up.files[w.Number])
	}
	return files, p.As(kind)
}

// assembly reads files one after the other, and deletes those that it has read.
type assembly struct {
	files    []string
	now      *os.File
	released bool
}

func (a *assembly) Read(b []byte) (n int, err error) {
	for {
		if a.now == nil {
			if len(a.files) == 0 {
				return 0, io.EOF
			}
			if a.now, err = os.Open(a.files[0]); err != nil {
				return 0, err
			}
		}
		n, err = a.now.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		a.close()
		_ = os.Remove(a.files[0]) // the rest goes with the upload
		a.files, a.released = a.files[1:], true
	}
}

func (a *assembly) close() {
	if a.now != nil {
		_ = a.now.Close() // it was only read
		a.now = nil
	}
}

// Close drops all uploads.
func (s *Store) Close() {
	s.mu.Lock()
	for _, up := range s.open {
		s.forget(up)
	}
	s.mu.Unlock()
	_ = os.RemoveAll(s.dir)
}
