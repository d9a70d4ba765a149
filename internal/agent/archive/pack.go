package archive

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dozehq/doze"
)

// Names of the members that are no files of the root. They come first.
const (
	manifestName  = ".doze-archive/manifest.json"
	processesName = ".doze-archive/processes.json"
)

// Manifest describes a pack, in it and in answers.
type Manifest struct {
	Version      int      `json:"version"`
	Root         string   `json:"root"`
	CreatedAt    string   `json:"createdAt"`
	Added        int      `json:"added,omitempty"`
	Modified     int      `json:"modified,omitempty"`
	Deleted      []string `json:"deleted,omitempty"` // a tar cannot say that
	Excludes     []string `json:"excludes,omitempty"`
	PayloadBytes int64    `json:"payloadBytes,omitempty"`
	Processes    bool     `json:"processes,omitempty"` // are listed in the pack
	APIVersion   string   `json:"apiVersion,omitempty"`
}

// Pack is an archive that is not written yet.
type Pack struct {
	Manifest Manifest
	Size     int64 // bytes, exactly

	root      string
	headers   []*tar.Header // of the root
	manifest  []byte
	processes []byte // JSON; nil for none
}

// New makes a pack of changes. processes, if there are any, is kept as it is.
func New(root string, changes []Change, excludes []string, processes []byte, version string, now time.Time) (*Pack, error) {
	p := &Pack{
		root:      root,
		processes: processes,
		Manifest: Manifest{
			Version: 1, Root: root, CreatedAt: now.UTC().Format(time.RFC3339),
			Excludes: excludes, Processes: processes != nil, APIVersion: version,
		},
	}
	links := map[[2]uint64]string{} // first names of files that have several
	for _, c := range changes {
		switch c.Kind {
		case Added:
			p.Manifest.Added++
		case Modified:
			p.Manifest.Modified++
		case Deleted:
			p.Manifest.Deleted = append(p.Manifest.Deleted, c.Path)
			continue
		}
		h, err := p.header(c, links)
		if err != nil {
			return nil, doze.Wrap(err, doze.Internal, "%v", err)
		}
		p.headers = append(p.headers, h)
		p.Manifest.PayloadBytes += h.Size
	}
	var err error
	if p.manifest, err = json.Marshal(p.Manifest); err != nil {
		return nil, err
	}
	p.Size, err = p.measure()
	return p, err
}

// header makes the header of a change.
func (p *Pack) header(c Change, links map[[2]uint64]string) (*tar.Header, error) {
	target := ""
	if c.info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(filepath.Join(p.root, c.Path)); err != nil {
			return nil, err
		}
	}
	h, err := tar.FileInfoHeader(c.info, target)
	if err != nil {
		return nil, err
	}
	h.Name, h.Format = c.Path, tar.FormatPAX
	h.Uname, h.Gname, h.AccessTime, h.ChangeTime = "", "", time.Time{}, time.Time{} // names are the other side's
	if c.info.IsDir() {
		h.Name += "/"
	}
	if st, ok := c.info.Sys().(*syscall.Stat_t); ok && c.info.Mode().IsRegular() && st.Nlink > 1 {
		id := [2]uint64{st.Dev, st.Ino}
		if first, known := links[id]; known {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			links[id] = c.Path
		}
	}
	return h, nil
}

// extra returns the header of a member that is no file.
func (p *Pack) extra(name string, content []byte) *tar.Header {
	at, _ := time.Parse(time.RFC3339, p.Manifest.CreatedAt) // we wrote it
	return &tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: at, Format: tar.FormatPAX}
}

const block = 512 // bytes of a tar

// measure adds up what will be written.
func (p *Pack) measure() (int64, error) {
	var n counter
	headers := append([]*tar.Header{p.extra(manifestName, p.manifest)}, p.headers...)
	if p.processes != nil {
		headers = append(headers, p.extra(processesName, p.processes))
	}
	for _, h := range headers {
		// A writer of its own: it would ask for the content before the next.
		if err := tar.NewWriter(&n).WriteHeader(h); err != nil {
			return 0, err
		}
		n += counter((h.Size + block - 1) / block * block)
	}
	return int64(n) + 2*block, nil
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }

// Write writes the pack, [Pack.Size] bytes. A file that has changed meanwhile is
// an error.
func (p *Pack) Write(ctx context.Context, w io.Writer) error {
	out := tar.NewWriter(w)
	for _, m := range []struct {
		name    string
		content []byte
	}{{manifestName, p.manifest}, {processesName, p.processes}} {
		if m.content == nil {
			continue
		}
		if err := out.WriteHeader(p.extra(m.name, m.content)); err != nil {
			return err
		}
		if _, err := out.Write(m.content); err != nil {
			return err
		}
	}
	for _, h := range p.headers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if h.Size > 0 {
			if err := p.copy(out, h); err != nil {
				return err
			}
		}
	}
	return out.Close()
}

func (p *Pack) copy(out io.Writer, h *tar.Header) error {
	name := filepath.Join(p.root, h.Name) //nolint:gosec // the header is ours
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return doze.Wrap(err, doze.Internal, "%v", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := io.CopyN(out, f, h.Size); err != nil {
		return doze.Wrap(err, doze.Internal, "%s changed while it was read, or the upload broke: %v", h.Name, err)
	}
	return nil
}
