package build

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/store"
)

const (
	// UploadHeader has the address that the files of a build are put to. The address alone
	// gives the right to upload, once.
	UploadHeader = "X-Blaxel-Upload-Url"
	// freeMin is how many bytes of the disk uploads leave to everybody else.
	freeMin = 1 << 30
	// headMax is how many bytes say of which kind an archive is: a tar says so behind the
	// name of its first file.
	headMax = 512
)

// An Offer is a build that somebody wants.
type Offer struct {
	ID        string // of the build, if it becomes a new one
	Workspace string
	Name, Tag string // of the image
	UID       string // of the sandbox that is to have the image; empty is none
	By        string // who wants it
	Options   doze.BuildRequest
	Change    []byte // see [store.Hidden]
}

// Offer offers an address for the files of a build, and returns the build with it. If the
// last offer for the same target was not used yet, its address is void from now on. A
// build for the same target that has its files is cancelled: this one takes its place. The
// caller has the turn of the sandbox, if there is one.
func (s *Server) Offer(ctx context.Context, o Offer) (doze.Build, error) {
	if err := s.Available(ctx); err != nil {
		return doze.Build{}, err
	}
	target := ImageTarget(o.Workspace, o.Name)
	if o.UID != "" {
		target = SandboxTarget(o.UID)
	}
	life, release, err := s.locks.Take(ctx, string(target))
	if err != nil {
		return doze.Build{}, doze.Wrap(err, doze.Timeout, "another build of %s is being begun: try again", o.Name)
	}
	defer release()
	s.mu.Lock()
	other := s.targets[string(target)]
	s.mu.Unlock()
	if other != nil {
		err := s.cancelBuild(life, other, "a newer build takes its place", true)
		if err != nil && doze.Public(err).Kind != doze.Conflict { // it has just ended
			return doze.Build{}, err
		}
	}
	return s.offer(life, o)
}

// offer records a build. Preconditions: the lock of its target is held.
func (s *Server) offer(ctx context.Context, o Offer) (doze.Build, error) {
	token, now := rand.Text(), time.Now()
	hash := sha256.Sum256([]byte(token))
	b := store.Build{
		Build: doze.Build{
			ID: o.ID, Name: o.Name, Tag: o.Tag, ResourceType: doze.KindSandbox, Workspace: o.Workspace, Status: doze.BuildUploading,
			Dockerfile: o.Options.Dockerfile, Target: o.Options.Target, Args: o.Options.Args, NoCache: o.Options.NoCache,
			CreatedAt: doze.Time{Time: now}, CreatedBy: o.By,
		},
		Phase: store.BuildOffered, UID: o.UID, Token: hash[:], Until: doze.Time{Time: now.Add(doze.BuildUploadTime)},
		Hidden: store.Hidden{Secrets: o.Options.Secrets, Change: o.Change},
	}
	if o.UID == "" {
		b.ResourceType = "image"
	}
	forgotten, err := s.Store.InsertBuild(ctx, b)
	if err != nil {
		return doze.Build{}, err
	}
	for _, id := range forgotten {
		s.remove(ctx, id, logKind)
	}
	s.mu.Lock()
	s.addLocked(b)
	delete(s.failed, targetOf(&b)) // the new one is what there is to see
	s.mu.Unlock()
	s.ring.Ring() // it expires
	out := b.Build
	out.UploadURL = s.Base + "/builds/" + b.ID + "/context?token=" + url.QueryEscape(token)
	return out, nil
}

// Undo forgets an offer whose target could not be recorded.
func (s *Server) Undo(ctx context.Context, b doze.Build) {
	if j := s.jobOf(b.ID); j != nil {
		if err := s.cancelBuild(context.WithoutCancel(ctx), j, "it was not begun", true); err != nil {
			slog.WarnContext(ctx, "an offer of an upload is left until it expires", "build", b.ID, "err", err)
		}
	}
}

func (s *Server) jobOf(id string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id]
}

// received answers an upload.
type received struct {
	Message string `json:"message"`
	Build   string `json:"build"` // its id
}

// upload stores the files of a build, and has it wait for its turn. It needs no credential but
// what is in its address, which is good once: until the files are stored.
func (s *Server) upload(ctx context.Context, r *http.Request) (out received, err error) {
	j, err := s.offered(ctx, r)
	if err != nil {
		return out, err
	}
	_, release, busy := s.locks.Try(ctx, "upload/"+j.id)
	if busy != nil {
		return out, doze.Errorf(doze.Conflict, "another upload to this address is under way: wait for it, or ask for another address")
	}
	defer release()
	if err := s.enter(j); err != nil {
		return out, err
	}
	defer s.leave(j)
	size, err := s.receive(r, j.id)
	if err != nil {
		s.remove(ctx, j.id, partKind)
		return out, err
	}
	// From here on the build goes on without the caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := s.queue(ctx, j, r, size); err != nil {
		s.remove(ctx, j.id, partKind)
		return out, err
	}
	return received{"the files are there, and the build waits for its turn", j.id}, nil
}

// offered is the build that the address of an upload is for.
func (s *Server) offered(ctx context.Context, r *http.Request) (*job, error) {
	id := r.PathValue("build")
	b, err := s.Store.Build(ctx, id)
	j, hash := s.jobOf(id), sha256.Sum256([]byte(r.URL.Query().Get("token")))
	switch {
	case doze.Public(err).Kind == doze.NotFound:
	case err != nil:
		return nil, err
	case j == nil || len(b.Token) == 0:
		return nil, doze.Errorf(doze.Conflict, "this address was used already, or its build has ended: ask for another one")
	case subtle.ConstantTimeCompare(hash[:], b.Token) == 1:
		if !time.Now().Before(b.Until.Time) {
			return nil, doze.Errorf(doze.Conflict, "this address was good for %s: ask for another one", doze.BuildUploadTime)
		}
		return j, nil
	}
	return nil, doze.Errorf(doze.NotFound, "there is no such upload: use the address in %s as it came", strings.ToLower(UploadHeader))
}

// enter counts an upload.
func (s *Server) enter(j *job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.uploads[j.workspace]; n >= doze.BuildUploadsMax {
		return doze.Errorf(doze.Exhausted, "the workspace has %d uploads under way, which is the limit: try again when one is done", n)
	}
	s.uploads[j.workspace]++
	j.taking = true
	return nil
}

func (s *Server) leave(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uploads[j.workspace]--; s.uploads[j.workspace] == 0 {
		delete(s.uploads, j.workspace)
	}
	j.taking = false
	s.ring.Ring()
}

// receive stores the body of an upload, and returns its bytes.
func (s *Server) receive(r *http.Request, id string) (size int64, err error) {
	tooLarge := doze.Errorf(doze.TooLarge, "the files have more than %d MB: list those that the Dockerfile does not need in .dockerignore", doze.BuildContextMax>>20)
	if r.ContentLength > doze.BuildContextMax {
		return 0, tooLarge
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.Dir, &disk); err != nil {
		return 0, err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < freeMin+max(r.ContentLength, 0) { //nolint:gosec // G115: no disk has 2^63 blocks
		return 0, errDiskFull
	}
	f, err := os.OpenFile(s.file(id, partKind), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err = io.Copy(f, io.LimitReader(r.Body, doze.BuildContextMax+1))
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return 0, errDiskFull
	case err != nil:
		if known, ok := errors.AsType[*doze.Error](err); ok {
			return 0, known
		}
		return 0, doze.Wrap(err, doze.Invalid, "the body ended early: send the whole archive")
	case size > doze.BuildContextMax:
		return 0, tooLarge
	}
	if size == 0 {
		return 0, doze.Errorf(doze.Invalid, "the body is empty: send the files as a zip, tar or tar.gz")
	}
	head := make([]byte, min(size, headMax))
	if _, err := f.ReadAt(head, 0); err != nil {
		return 0, err
	}
	if !isArchive(head) {
		return 0, doze.Errorf(doze.Invalid, "the body is no zip, tar or tar.gz: send the files as one of them")
	}
	if err := s.checkDeclared(f, size); err != nil {
		return 0, err
	}
	return size, f.Sync()
}

// checkDeclared refuses an archive that says of itself that no builder can unpack it.
func (s *Server) checkDeclared(f io.ReaderAt, size int64) error {
	d, err := declared(f, size, buildapi.ContextFilesMax)
	most := buildapi.ContextMost(s.Sandboxes().BuilderDisk().Bytes())
	switch {
	case err != nil:
		return err
	case d.empty:
		return doze.Errorf(doze.Invalid, "the archive is empty: send the directory of the Dockerfile, with the Dockerfile in it")
	case d.files > buildapi.ContextFilesMax:
		return doze.Errorf(doze.TooLarge, "the archive has more than %d files, which is the limit: list those that the Dockerfile does not need in .dockerignore", buildapi.ContextFilesMax)
	case d.bytes > most:
		return doze.Errorf(doze.TooLarge, "the archive unpacks to %d MB, and the limit is %d MB: "+
			"list files that the Dockerfile does not need in .dockerignore, or ask the operator for a larger --build-disk-mb", d.bytes>>20, most>>20)
	}
	return nil
}

var errDiskFull = doze.Errorf(doze.Exhausted, "the platform has no room on its disk for these files: try again later, or ask the operator for a larger disk")

// isArchive reports whether a file begins as a zip, a tar or a gzip does. What is in it, the
// builder looks at, in its machine.
func isArchive(head []byte) bool {
	for _, magic := range [][]byte{zipMagic, zipEndMagic, gzipMagic} {
		if bytes.HasPrefix(head, magic) {
			return true
		}
	}
	const at = 257 // in the header of a tar
	return len(head) >= headMax && bytes.HasPrefix(head[at:], []byte("ustar")) || emptyTar(head)
}

// queue records that the files of a build are there.
func (s *Server) queue(ctx context.Context, j *job, r *http.Request, size int64) error {
	b := s.recordOf(j)
	if b.UID != "" { // before the build begins, which may be at once
		if err := s.Sandboxes().Uploaded(ctx, b.UID); err != nil {
			return err
		}
	}
	hash := sha256.Sum256([]byte(r.URL.Query().Get("token")))
	_, err := s.change(ctx, j, func(b *store.Build) error {
		if b.Phase != store.BuildOffered || subtle.ConstantTimeCompare(hash[:], b.Token) != 1 {
			return doze.Errorf(doze.Conflict, "another address took the place of this one meanwhile: use that")
		}
		// The record comes after the file: what has a record has its files.
		if err := os.Rename(s.file(b.ID, partKind), s.file(b.ID, archiveKind)); err != nil {
			return err
		}
		b.Phase, b.Token, b.Archive, b.Queued = store.BuildQueued, nil, size, doze.Time{Time: time.Now()}
		return durable.Sync(s.Dir)
	})
	if err != nil {
		s.remove(ctx, b.ID, archiveKind)
		return err
	}
	s.mu.Lock()
	position := s.positionLocked(j)
	room := s.total < s.Parallel
	s.mu.Unlock()
	if !room {
		j.log.say(waits(position))
	}
	s.ring.Ring()
	return nil
}
