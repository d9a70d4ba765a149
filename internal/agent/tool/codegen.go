package tool

import (
	"net/http"

	"github.com/dozehq/doze"
)

// RefuseCodegen answers for edits and rankings that need a language model.
func RefuseCodegen(*http.Request, string) (struct{}, error) {
	return struct{}{}, doze.Errorf(doze.Invalid, "codegen tools are not configured: they need a service outside of the sandbox")
}
