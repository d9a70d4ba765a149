package instance

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/dozehq/doze/internal/host"
)

// A Greeting tells a newcomer what to do next.
type Greeting struct {
	Data     string // the data directory
	URL      string // how the world reaches the platform
	API      string // path of the control API
	Previews string // URL of previews by path; empty where they have hosts of their own
	Key      string // the first key, if this start made it
	Terminal bool   // it goes to a terminal
	Egress   string // what sandboxes reach: the setting of that name
}

// reaches says what sandboxes without network rules reach, by the setting.
var reaches = map[string]string{
	host.EgressClosed: "Sandboxes reach nothing. Start with --egress open for public addresses.",
	host.EgressOpen:   "Sandboxes reach public addresses only, through the proxy. Start with --egress closed for none.",
	host.EgressDirect: "Sandboxes reach public addresses directly, with UDP. Start with --egress closed for none.",
}

// Print writes it. The text of a key goes to a terminal alone: any other output is
// kept, by a journal or a file that more people read than the file of the key.
func (g Greeting) Print(w io.Writer) {
	file := filepath.Join(g.Data, keyFile)
	key := "$(cat " + file + ")"
	fmt.Fprintf(w, "\nDoze is ready at %s\n", g.URL)
	if g.Previews != "" {
		fmt.Fprintf(w, "Previews are at %s\n", g.Previews)
	}
	fmt.Fprintln(w, reaches[g.Egress])
	switch {
	case g.Key == "":
	case g.Terminal:
		key = g.Key
		fmt.Fprintf(w, "The admin key, shown this once and kept in %s:\n  %s\n", file, key)
	default:
		fmt.Fprintf(w, "The admin key is in %s\n", file)
	}
	fmt.Fprintf(w, `A first call:
  curl -s -H "Authorization: Bearer %s" \
    -d '{"metadata":{"name":"hello"}}' %s%s/sandboxes
`, key, g.URL, g.API)
}
