package file

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/batch"
	"github.com/dozehq/doze/internal/agent/watch"
)

const (
	watchesMax     = 64
	watchKeepAlive = 30 * time.Second
)

// Watch sends what changes in a directory, as JSON lines, until the caller
// leaves or the directory does. A path that ends in ** means all directories
// below it, too.
func (c *Calls) Watch(w http.ResponseWriter, r *http.Request, arg string) error {
	recursive := arg == "**" || strings.HasSuffix(arg, "/**")
	if recursive {
		arg = strings.TrimSuffix(arg, "**")
	}
	at, err := c.places.Find(arg)
	if err != nil {
		return err
	}
	ignore := strings.FieldsFunc(r.URL.Query().Get("ignore"), func(c rune) bool { return c == ',' })
	if c.watches.Add(1) > watchesMax {
		c.watches.Add(-1)
		return doze.Errorf(doze.Unprocessable, "%d directories are watched, which is the most; close some", watchesMax)
	}
	defer c.watches.Add(-1)
	changes, err := watch.Open(at.Abs, recursive, ignore)
	if err != nil {
		return err
	}
	defer changes.Close()
	out := batch.Start(w, "text/plain; charset=utf-8")
	lines := json.NewEncoder(out)
	// It ends when the caller or the directory is gone: nobody is left to tell.
	_ = changes.Run(r.Context(), func(e watch.Event) error {
		if err := lines.Encode(e); err != nil {
			return err
		}
		return out.Flush()
	}, watchKeepAlive, func() error {
		if err := out.Add("[keepalive]\n"); err != nil {
			return err
		}
		return out.Flush()
	})
	return nil
}
