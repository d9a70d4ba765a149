package edge

import (
	"net/http"
	"strings"

	"github.com/dozehq/doze"
)

// showsPage reports whether a person opened the page of a terminal with a
// credential in its address. Such a page is ours and not the sandbox's: a script
// of the sandbox would read the credential.
func showsPage(r *http.Request, v *visit) bool {
	_, query := target(r)
	return v.preview == nil && v.port == doze.AgentPort && r.Method == http.MethodGet &&
		strings.TrimSuffix(v.path, "/") == terminalPrefix && tokenOf(query) != ""
}
