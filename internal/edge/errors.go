package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/httpx"
)

// Codes of the errors that the edge itself reports.
const (
	routeNotFound    = "ROUTE_NOT_FOUND"
	workloadNotFound = "WORKLOAD_NOT_FOUND"
	workloadDisabled = doze.NameUnavailable
	workloadFailed   = "WORKLOAD_FAILED"
	workloadArchived = doze.NameArchived
	workloadTimeout  = "WORKLOAD_TIMEOUT"
	authRequired     = "AUTHENTICATION_REQUIRED"
	authFailed       = "AUTHENTICATION_FAILED"
	forbidden        = "FORBIDDEN"
	badRequest       = "BAD_REQUEST"
	bodyTooLarge     = "REQUEST_ENTITY_TOO_LARGE"
	rateLimited      = doze.NameRateLimited
	quotaExceeded    = doze.NameQuotaExceeded
	internalError    = "INTERNAL_ERROR"
)

// advice is what a client may do about an error.
type advice struct {
	retryable bool
	action    string
	doNot     string
}

// advices has a row for each code.
var advices = map[string]advice{
	routeNotFound:    {false, "check the path", "do not retry: nothing is served there"},
	workloadNotFound: {false, "check the name of the sandbox and the workspace of the credential", "do not retry without a change"},
	workloadDisabled: {true, "retry with a growing delay, and check that the sandbox is enabled", "do not retry in a tight loop"},
	workloadFailed:   {false, "read the events of the sandbox; if it is FAILED, update it to start it afresh; or restore one of its snapshots, or delete and create it again", "do not retry: it will not recover by itself"},
	workloadArchived: {false, "unarchive the sandbox with POST /v0/sandboxes/<name>/unarchive, and wait until it is DEPLOYED", "do not retry before: it does not wake by itself"},
	workloadTimeout:  {true, "retry with a growing delay", "do not retry in a tight loop"},
	authRequired:     {false, "send the header Authorization: Bearer <API key>", "do not retry without a credential"},
	authFailed:       {false, "use a valid API key", "do not retry with the same credential"},
	forbidden:        {false, "use a credential that may control sandboxes", "do not retry with the same credential"},
	badRequest:       {false, "correct the request", "do not retry without a change"},
	bodyTooLarge:     {false, "send the body in parts, by a multipart upload", "do not retry with the same body"},
	rateLimited:      {true, "retry with a growing delay", "do not retry in a tight loop"},
	quotaExceeded:    {true, "retry with a growing delay, after Retry-After if it is there; or ask the operator for more", "do not retry in a tight loop"},
	internalError:    {true, "retry once, then tell the operator the request id", "do not retry in a tight loop"},
}

// unsure is the advice for a request that broke when the sandbox may have seen
// it, whatever the code says: to repeat it may do twice what should happen once.
var unsure = advice{false, "look whether the request took effect before you send it again", "do not retry blindly: the sandbox may have done what it was asked"}

// tokenAdvices replace those that name an API key, where a preview wants one of
// its own tokens and takes nothing else.
var tokenAdvices = map[string]advice{
	authRequired: {false, "send a token of the preview in the header X-Blaxel-Preview-Token or the query parameter bl_preview_token", "do not send an API key: a preview takes none"},
	authFailed:   {false, "use a valid token of the preview: POST /v0/sandboxes/<name>/previews/<preview>/tokens makes one", "do not retry with the same token"},
}

// forToken marks errors whose advice is in tokenAdvices.
var forToken = map[string]any{"credential": "preview_token"}

// adviceOf returns what a client may do about e.
func adviceOf(e *doze.Error) advice {
	if safe, ok := e.Fields["retryable"].(bool); ok && !safe {
		return unsure
	}
	if e.Fields["credential"] == forToken["credential"] {
		return tokenAdvices[codeOf(e)]
	}
	return advices[codeOf(e)]
}

// codes says which code reports a kind that has no name of its own.
var codes = map[doze.Kind]string{
	doze.Internal:        internalError,
	doze.Invalid:         badRequest,
	doze.Unauthenticated: authFailed,
	doze.Forbidden:       forbidden,
	doze.NotFound:        workloadNotFound,
	doze.Conflict:        workloadFailed,
	doze.Exhausted:       rateLimited,
	doze.Unavailable:     workloadDisabled,
	doze.Timeout:         workloadTimeout,
	doze.Unsupported:     badRequest,
	doze.Unprocessable:   badRequest,
	doze.TooLarge:        bodyTooLarge,
}

// codeOf returns the code of e, which is one of advices.
func codeOf(e *doze.Error) string {
	if _, ok := advices[e.Name]; ok {
		return e.Name
	}
	return cmp.Or(codes[e.Kind], internalError)
}

// Errors with the same text for every caller, so that a sandbox that exists
// elsewhere cannot be told from one that does not.
var (
	errNotFound  = &doze.Error{Kind: doze.NotFound, Name: workloadNotFound, Message: "there is no such sandbox in the workspace of this credential"}
	errForeign   = &doze.Error{Kind: doze.NotFound, Name: routeNotFound, Message: "no sandbox has this host: check the region and the domain"}
	errNoPreview = &doze.Error{Kind: doze.NotFound, Name: routeNotFound, Message: "there is no such preview, or it is over"}
	errNoToken   = &doze.Error{Kind: doze.Unauthenticated, Name: authRequired, Fields: forToken, Message: "this preview needs a token, in the header X-Blaxel-Preview-Token or the query parameter bl_preview_token"}
	errBadToken  = &doze.Error{Kind: doze.Unauthenticated, Name: authFailed, Fields: forToken, Message: "the token of this preview is wrong, expired or deleted"}
	errDisabled  = &doze.Error{Kind: doze.NotFound, Name: workloadDisabled, Message: "the sandbox is disabled"}
	errFailed    = &doze.Error{Kind: doze.Conflict, Name: workloadFailed, Message: "the sandbox is failed: its events say why"}
	errBuilding  = &doze.Error{Kind: doze.Unavailable, Name: workloadDisabled, Message: "the image of the sandbox is being built: try again when its status is DEPLOYED"}
	errKeyInPage = &doze.Error{Kind: doze.Unauthenticated, Name: authFailed, Message: "API keys and access tokens are not allowed in the URL of a page, because browsers store it: POST /v0/sandboxes/<name>/tickets makes an address that opens once"}
	errForbidden = &doze.Error{Kind: doze.Forbidden, Name: forbidden, Message: "this credential lacks the scope " + scope}
	errRevoked   = &doze.Error{Kind: doze.Unauthenticated, Name: authFailed, Message: "the credential of this request is no longer valid"}
	errIdle      = &doze.Error{Kind: doze.Timeout, Name: workloadTimeout, Message: "the WebSocket was idle for 15 minutes: open another one"}
	errTooOld    = &doze.Error{Kind: doze.Timeout, Name: workloadTimeout, Message: "a preview request may take at most 15 minutes: send another one"}
	errStopping  = &doze.Error{Kind: doze.Unavailable, Name: workloadDisabled, Message: "the gateway is shutting down; try again"}
	errStopped   = &doze.Error{
		Kind: doze.Unavailable, Name: workloadDisabled, Fields: map[string]any{"retryable": false},
		Message: "the gateway was stopped while the sandbox had the request, which may have run: check before you retry",
	}
	errTooLarge = &doze.Error{Kind: doze.TooLarge, Name: bodyTooLarge, Message: "the body of a request may have at most 512 MiB"}
)

// body is the form of an error of the platform, as opposed to one of the
// sandbox.
func body(e *doze.Error) any {
	a := adviceOf(e)
	out := map[string]any{
		"action":    a.action,
		"code":      codeOf(e),
		"do_not":    a.doNot,
		"docs_url":  "",
		"message":   e.Message,
		"origin":    "platform",
		"retryable": a.retryable,
		"status":    e.Kind.Status(),
		"timestamp": time.Now().UTC().Format(time.RFC3339Nano),
	}
	for _, name := range []string{"quota", "used", "limit"} {
		if v, ok := e.Fields[name]; ok {
			out[name] = v
		}
	}
	return map[string]any{"error": out}
}

// refuse reports err in the form of the platform. A browser on another origin
// may read it too.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	err = httpx.Denied(w, err)
	e := doze.Public(err)
	h := w.Header()
	h.Set("X-Blaxel-Source", "platform")
	h.Set("X-Blaxel-Error-Code", codeOf(e))
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Cache-Control", "no-store")
	if e.Kind == doze.Unauthenticated {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if errors.Is(err, errBuilding) {
		h.Set("Retry-After", buildingRetry)
	}
	if !adviceOf(e).retryable {
		h.Set("X-Should-Retry", "false") // some clients repeat any 409, or 503
	}
	httpx.WriteErrorAs(w, r, err, body)
}

// buildingRetry is after how many seconds a caller asks again for a sandbox that is being built.
const buildingRetry = "5"

// idempotent methods may be repeated when nobody knows how far they came.
var idempotent = []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions}

// classify turns an error of the way to a sandbox into one for the caller.
func classify(r *http.Request, err error) error {
	if e, ok := errors.AsType[*doze.Error](err); ok {
		switch e.Kind {
		case doze.Internal, doze.Invalid, doze.Unauthenticated, doze.Forbidden: // of us, not of the caller
			return doze.Wrap(err, doze.Internal, "internal error")
		case doze.Unavailable:
			if e.Err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fleet.ErrUnreachable) {
				return err // nothing was sent: a tunnel opens before the request
			}
			return broken(r, e.Message, err)
		default:
			return err
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return doze.Wrap(err, doze.Timeout, "the sandbox took too long")
	}
	return broken(r, "the sandbox closed the connection without an answer", err)
}

// broken is the error of a connection that broke, perhaps after the sandbox
// had seen the request.
func broken(r *http.Request, message string, err error) error {
	return &doze.Error{
		Kind: doze.Unavailable, Err: err, Message: message,
		Fields: map[string]any{"retryable": slices.Contains(idempotent, r.Method)},
	}
}

// noPath names a path that callers cannot ask for, or its beginning.
func noPath(path string) error {
	return &doze.Error{Kind: doze.NotFound, Name: routeNotFound, Message: fmt.Sprintf("no such path: %.200s", path)}
}
