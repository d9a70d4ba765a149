package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

// Exit codes. A command that runs in a sandbox brings its own.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitUnavailable = 5
	exitTimeout     = 124 // as that of timeout(1)
	exitSignal      = 128 // and the number of a signal, as shells report one
	exitInterrupted = exitSignal + 2
)

// exits says what each code means, for the help.
var exits = []struct {
	code int
	text string
}{
	{0, "the command succeeded"},
	{exitFailed, "it failed for another reason than those below"},
	{exitUsage, "the command line or the request is wrong (400, 413): change it"},
	{exitNotFound, "there is no such thing (404)"},
	{exitRefused, "the server refuses (401, 403, 409, 429): log in, ask for rights, look at the state of the resource, or at your quotas. Or the sandbox is disabled"},
	{exitUnavailable, "no answer from the server or the sandbox (503, 504): try again"},
	{exitTimeout, "the command in the sandbox reached --timeout and was stopped"},
	{exitInterrupted, "you interrupted doze"},
}

// exitOf is the exit code for each kind of error of the API.
var exitOf = map[doze.Kind]int{
	doze.Internal:        exitFailed,
	doze.Invalid:         exitUsage,
	doze.Unauthenticated: exitRefused,
	doze.Forbidden:       exitRefused,
	doze.NotFound:        exitNotFound,
	doze.Conflict:        exitRefused,
	doze.Exhausted:       exitRefused,
	doze.Unavailable:     exitUnavailable,
	doze.Timeout:         exitUnavailable,
	doze.Unsupported:     exitFailed,
	doze.Unprocessable:   exitFailed,
	doze.TooLarge:        exitUsage,
}

// exitCode is the exit code for an error that is none of a command in a sandbox. Of
// several errors the first one counts.
func exitCode(err error) int {
	if _, usage := errors.AsType[usageError](err); usage {
		return exitUsage
	}
	if errors.Is(err, errTooLong) {
		return exitTimeout
	}
	if isDisabled(err) {
		return exitRefused // the sandbox is there, although its API says 404
	}
	if e, ok := errors.AsType[*doze.Error](err); ok {
		return exitOf[e.Kind]
	}
	return exitFailed
}

// isDisabled reports that a request came to a disabled sandbox. The edge says 404 and this
// name of nothing else.
func isDisabled(err error) bool {
	e, ok := errors.AsType[*doze.Error](err)
	return ok && e.Kind == doze.NotFound && e.Name == doze.NameUnavailable
}

// exitHelp is the page of help about exit codes.
func exitHelp() *cobra.Command {
	var text strings.Builder
	for _, e := range exits {
		fmt.Fprintf(&text, "  %3d  %s\n", e.code, e.text)
	}
	return &cobra.Command{
		Use: "exit-codes", Short: "The exit codes of doze",
		Long: "doze exits with one of these codes:\n\n" + text.String() + `
exec and shell exit with the code of the command, or with 128 plus the number of
the signal that ended it. Their own errors have the codes above. These errors
begin with "doze: " on standard error.`,
	}
}
