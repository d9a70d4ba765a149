package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// listMax bounds a listing, which is held in memory.
	listMax = 100_000
	// sizelessMax bounds what is read of files that do not know their size,
	// such as those of /proc.
	sizelessMax = 4 << 20
	// quoteMax is what is quoted at once. Each byte may become six.
	quoteMax = 128 << 10
)

// file describes a file in answers (spec 2.15).
type file struct {
	Path         string `json:"path"`
	Name         string `json:"name"`
	Permissions  string `json:"permissions"` // octal
	Size         int64  `json:"size"`        // bytes
	LastModified string `json:"lastModified"`
	Owner        string `json:"owner"` // a name, or a number without one
	Group        string `json:"group"`
}

// directory is a listing of one level (spec 2.15).
type directory struct {
	Path           string         `json:"path"`
	Name           string         `json:"name"`
	Files          []file         `json:"files"`
	Subdirectories []subdirectory `json:"subdirectories"`
}

type subdirectory struct {
	Path string `json:"path"`
	Name string `json:"name"`
}

// owners remembers the names of users and groups for one answer.
type owners struct{ users, groups map[uint32]string }

func newOwners() owners { return owners{map[uint32]string{}, map[uint32]string{}} }

func (o owners) user(id uint32) string {
	if _, ok := o.users[id]; !ok {
		o.users[id] = strconv.FormatUint(uint64(id), 10)
		if u, err := user.LookupId(o.users[id]); err == nil {
			o.users[id] = u.Username
		}
	}
	return o.users[id]
}

func (o owners) group(id uint32) string {
	if _, ok := o.groups[id]; !ok {
		o.groups[id] = strconv.FormatUint(uint64(id), 10)
		if g, err := user.LookupGroupId(o.groups[id]); err == nil {
			o.groups[id] = g.Name
		}
	}
	return o.groups[id]
}

// describe makes a file out of what the kernel says.
func (o owners) describe(shown, name string, info fs.FileInfo) file {
	f := file{
		Path:         shown,
		Name:         name,
		Permissions:  strconv.FormatUint(uint64(unixMode(info.Mode())), 8),
		Size:         info.Size(),
		LastModified: info.ModTime().UTC().Format(time.RFC3339Nano),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.Owner, f.Group = o.user(st.Uid), o.group(st.Gid)
	}
	return f
}

// unixMode returns the twelve permission bits of m.
func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range []struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

// place finds the place that a file route means.
func (a *Agent) place(arg string) (place, error) {
	return parsePath(arg, a.workDir(), a.vars.list().get("HOME"))
}

// readFile answers with a directory's listing or a file's content, as JSON or
// raw (ranges and conditions included).
func (a *Agent) readFile(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := a.place(arg)
	if err != nil {
		return err
	}
	info, err := os.Stat(at.abs)
	if err != nil {
		return statError(err)
	}
	if info.IsDir() {
		d, err := list(at)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, d)
		}
		return err
	}
	f, info, err := open(at, info)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if !wantsRaw(strings.Join(r.Header.Values("Accept"), ","), r.URL.Query().Get("download") == "true") {
		return writeContent(w, newOwners().describe(at.shown, path.Base(at.abs), info), f)
	}

	var content io.ReadSeeker = f
	if info.Size() == 0 {
		b, err := io.ReadAll(io.LimitReader(f, sizelessMax))
		if err != nil {
			return doze.Wrap(err, doze.Unprocessable, "%v", err)
		}
		content = strings.NewReader(string(b))
	}
	name := path.Base(at.abs)
	w.Header().Set("Content-Type", contentType(name))
	w.Header().Set("Content-Disposition", attachment(name))
	http.ServeContent(w, r, "", info.ModTime(), content)
	return nil
}

// open opens a file that looked like info. The caller must close it.
func open(at place, info fs.FileInfo) (*os.File, fs.FileInfo, error) {
	if !info.Mode().IsRegular() {
		return nil, nil, doze.Errorf(doze.Unprocessable, "%s is not a regular file; use a process to read it", at.shown)
	}
	// It may be another file by now, which must not block the open.
	f, err := os.OpenFile(at.abs, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, doze.Wrap(err, doze.Unprocessable, "%v", err)
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close() // it was not even read
		return nil, nil, doze.Wrap(err, doze.Unprocessable, "%s is not a regular file any more; try again", at.shown)
	}
	return f, info, nil
}

// wantsRaw reports whether a file goes out as it is rather than inside JSON.
func wantsRaw(accept string, download bool) bool {
	accept = strings.ToLower(accept)
	if download || strings.Contains(accept, "application/octet-stream") {
		return true
	}
	return accept != "" && !strings.Contains(accept, "*/*") && !strings.Contains(accept, "application/json")
}

// writeContent writes f with the member content, which it does not hold in
// memory. Bytes that are not UTF-8 become U+FFFD. A file that cannot be read at
// all is Unprocessable.
func writeContent(w http.ResponseWriter, f file, src io.Reader) error {
	head, err := json.Marshal(f)
	if err != nil {
		return err
	}
	buf := make([]byte, textAhead)
	if f.Size > textAhead {
		if large := scratch.Lend(); large != nil {
			defer scratch.Return(large)
			buf = large[:quoteMax]
		}
	}
	n, err := src.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		return doze.Wrap(err, doze.Unprocessable, "%v", err)
	}
	w.Header().Set("Content-Type", httpx.JSONType)
	out := bufio.NewWriter(w)
	_, _ = out.Write(head[:len(head)-1]) // a bufio.Writer keeps its first error for Flush
	_, _ = out.WriteString(`,"content":"`)
	var (
		split  carry
		quoted bytes.Buffer
	)
	quote := json.NewEncoder(&quoted)
	write := func(text string) {
		quoted.Reset()
		_ = quote.Encode(text) // a string always can be
		_, _ = out.Write(quoted.Bytes()[1 : quoted.Len()-len("\"\n")])
	}
	for ; ; n, err = src.Read(buf) {
		write(split.add(buf[:n]))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
	}
	write(split.rest())
	_, _ = out.WriteString("\"}\n")
	_ = out.Flush() // the caller went away: nobody is left to tell
	return nil
}

// carry holds back the bytes of a character that is not complete yet, so that
// a stream of pieces can be sent as text.
type carry struct{ held []byte }

// add returns the complete text of what was held and b.
func (c *carry) add(b []byte) string {
	if len(c.held) > 0 {
		b = append(c.held, b...)
	}
	keep := 0
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				keep = i
			}
			break
		}
	}
	s := string(b[:len(b)-keep])
	c.held = append([]byte(nil), b[len(b)-keep:]...)
	return s
}

// rest returns what was held back for good.
func (c *carry) rest() string {
	s := string(c.held)
	c.held = nil
	return s
}

// contentTypes is fixed: the answer must not depend on the image.
var contentTypes = map[string]string{
	".txt": "text/plain", ".log": "text/plain",
	".html": "text/html", ".htm": "text/html",
	".css":  "text/css",
	".js":   "application/javascript",
	".json": "application/json",
	".xml":  "application/xml",
	".pdf":  "application/pdf",
	".zip":  "application/zip",
	".tar":  "application/x-tar",
	".gz":   "application/gzip",
	".jpg":  "image/jpeg", ".jpeg": "image/jpeg",
	".png": "image/png",
	".gif": "image/gif",
	".svg": "image/svg+xml",
}

func contentType(name string) string {
	if t, ok := contentTypes[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return "application/octet-stream"
}

// attachment returns the Content-Disposition of a download.
func attachment(name string) string {
	plain := strings.Map(func(c rune) rune {
		switch {
		case c < ' ' || c > '~':
			return '_'
		case c == '"' || c == '\\':
			return '\''
		}
		return c
	}, name)
	value := fmt.Sprintf(`attachment; filename="%s"`, plain)
	if plain != name && mime.FormatMediaType("attachment", map[string]string{"filename": name}) != "" {
		value += "; filename*=UTF-8''" + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
	}
	return value
}

// list returns one level of the directory at. Links are files: they are shown,
// not followed.
func list(at place) (directory, error) {
	entries, err := os.ReadDir(at.abs)
	if err != nil {
		return directory{}, doze.Wrap(err, doze.Unprocessable, "%v", err)
	}
	if len(entries) > listMax {
		return directory{}, doze.Errorf(doze.Unprocessable, "%s has %d entries; at most %d can be listed, so use a process", at.shown, len(entries), listMax)
	}
	d := directory{Path: at.shown, Name: path.Base(at.abs), Files: []file{}, Subdirectories: []subdirectory{}}
	names := newOwners()
	for _, e := range entries {
		shown := path.Join(at.shown, e.Name())
		if e.IsDir() {
			d.Subdirectories = append(d.Subdirectories, subdirectory{Path: shown, Name: e.Name()})
		} else if info, err := e.Info(); err == nil { // else it is gone by now
			d.Files = append(d.Files, names.describe(shown, e.Name(), info))
		}
	}
	return d, nil
}

// statError reports a path that cannot be looked at.
func statError(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return doze.Wrap(err, doze.NotFound, "%v", err)
	}
	return doze.Wrap(err, doze.Internal, "%v", err)
}
