package agent

import (
	"net/http"

	"github.com/dozehq/doze"
)

// refuseCodegen answers for edits and rankings that need a language model.
func refuseCodegen(*http.Request, string) (struct{}, error) {
	return struct{}{}, doze.Errorf(doze.Invalid, "codegen tools are not configured: they need a service outside of the sandbox")
}
