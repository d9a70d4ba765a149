package planetest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// Builders implements [fleet.Builder]: it fails as it is told to, as on a node without any.
func (n *Node) Builders(ctx context.Context) (map[string]fleet.BuilderUse, error) {
	n.Mu.Lock()
	err := n.fail["builders"]
	n.Mu.Unlock()
	if err != nil {
		return nil, err
	}
	return n.Builder.Builders(ctx)
}

// Tar is an archive with files, by their names.
func Tar(files map[string]string) string {
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for name, text := range files {
		// A buffer takes all.
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatUSTAR})
		_, _ = w.Write([]byte(text))
	}
	_ = w.Close()
	return raw.String()
}

// Upload puts an archive to the address that the answer to a request has, and returns the
// id of the build.
func (p *Platform) Upload(address, archive string) string {
	p.T.Helper()
	out := Want[struct{ Build string }](p, 200, "PUT", p.Path(address), archive, "Authorization", "", "Content-Type", "application/x-tar")
	return out.Build
}

// Path is an address of this platform as [Platform.Do] takes it.
func (p *Platform) Path(address string) string {
	p.T.Helper()
	if !strings.HasPrefix(address, Base) {
		p.T.Fatalf("%q is no address of this platform", address)
	}
	return strings.TrimPrefix(address, Base)
}

// Offer sends a request that asks for an upload, and returns the address.
func (p *Platform) Offer(method, path, body string, headers ...string) (address string) {
	p.T.Helper()
	w := p.Do(method, path, body, headers...)
	if address = w.Header().Get("X-Blaxel-Upload-Url"); w.Code != 200 || address == "" {
		p.T.Fatalf("%s %s: %d %s, upload to %q", method, path, w.Code, w.Body, address)
	}
	return address
}

// BuildLog are the lines of the log of a build.
func (p *Platform) BuildLog(id string) (all []doze.BuildEvent) {
	p.T.Helper()
	w := p.Do("GET", "/builds/"+id+"/logs", "")
	for line := range strings.Lines(w.Body.String()) {
		var e doze.BuildEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil || w.Code != 200 {
			p.T.Fatalf("%d %q: %v", w.Code, line, err)
		}
		all = append(all, e)
	}
	return all
}

// Ended waits until a build has ended, and returns it.
func (p *Platform) Ended(id string) doze.Build {
	p.T.Helper()
	for range 600 {
		if b := Want[doze.Build](p, 200, "GET", "/builds/"+id, ""); b.Ended() {
			return b
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.T.Fatalf("the build %s does not end", id)
	return doze.Build{}
}

// Spool is the directory of the archives and logs of builds.
func (p *Platform) Spool() string { return p.spool }
