package file

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/agent/text"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// quoteMax is what is quoted at once. Each byte may become six.
	quoteMax = 128 << 10
	// sizelessMax bounds what is read of files that do not know their size,
	// such as those of /proc.
	sizelessMax = 4 << 20
)

// Read answers with a directory's listing or a file's content, as JSON or
// raw (ranges and conditions included).
func (c *Calls) Read(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.Find(arg)
	if err != nil {
		return err
	}
	info, err := os.Stat(at.Abs)
	if err != nil {
		return StatError(err)
	}
	if info.IsDir() {
		d, err := List(at)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, d)
		}
		return err
	}
	f, info, err := Open(at, info)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if !wantsRaw(strings.Join(r.Header.Values("Accept"), ","), r.URL.Query().Get("download") == "true") {
		return writeContent(w, NewNames().Describe(at.Shown, path.Base(at.Abs), info), f)
	}

	var content io.ReadSeeker = f
	if info.Size() == 0 {
		b, err := io.ReadAll(io.LimitReader(f, sizelessMax))
		if err != nil {
			return doze.Wrap(err, doze.Unprocessable, "%v", err)
		}
		content = strings.NewReader(string(b))
	}
	name := path.Base(at.Abs)
	w.Header().Set("Content-Type", contentType(name))
	w.Header().Set("Content-Disposition", attachment(name))
	http.ServeContent(w, r, "", info.ModTime(), content)
	return nil
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
func writeContent(w http.ResponseWriter, f File, src io.Reader) error {
	head, err := json.Marshal(f)
	if err != nil {
		return err
	}
	buf := make([]byte, text.Ahead)
	if f.Size > text.Ahead {
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
		split  text.Carry
		quoted bytes.Buffer
	)
	quote := json.NewEncoder(&quoted)
	write := func(text string) {
		quoted.Reset()
		_ = quote.Encode(text) // a string always can be
		_, _ = out.Write(quoted.Bytes()[1 : quoted.Len()-len("\"\n")])
	}
	for ; ; n, err = src.Read(buf) {
		write(split.Add(buf[:n]))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
	}
	write(split.Rest())
	_, _ = out.WriteString("\"}\n")
	_ = out.Flush() // the caller went away: nobody is left to tell
	return nil
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

// otherType is that of every other file.
const otherType = "application/octet-stream"

// ContentTypes returns the types that files are sent with, in their order.
func ContentTypes() []string {
	all := append(slices.Collect(maps.Values(contentTypes)), otherType)
	slices.Sort(all)
	return slices.Compact(all)
}

func contentType(name string) string {
	if t, ok := contentTypes[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return otherType
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
