// Package tool offers language models what callers can do, by the Model Context
// Protocol.
package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/process"
	"github.com/dozehq/doze/internal/httpx"
)

// mcpMax bounds a message, which is held in memory more than once.
var mcpMax = body.Bound{Bytes: 16 << 20, Advice: "write what is large to a file, as multipart/form-data"}

// tools is what language models are offered.
var tools = []func(*Set, *mcp.Server){
	tool("processesList", "List all processes, the newest first, with the end of their output.", (*Set).toolProcesses),
	tool("processExecute", "Run a command in a shell. With waitForCompletion the answer has its output; a command that takes longer than 58 seconds goes on, and the answer says so.", (*Set).toolExecute),
	tool("processGet", "Describe a process, with the end of its output.", (*Set).toolProcess),
	tool("processGetLogs", "Get the output of a process: stdout, then stderr.", (*Set).toolLogs),
	tool("processStop", "Ask a process and its group to end (SIGTERM).", (*Set).toolStop),
	tool("processKill", "End a process and its group at once (SIGKILL).", (*Set).toolKill),

	tool("fsGetWorkingDirectory", "Get the directory that relative paths begin in.", (*Set).toolWorkDir),
	tool("fsListDirectory", "List a directory, one level deep.", (*Set).toolList),
	tool("fsReadFile", "Read a text file whole.", (*Set).toolRead),
	tool("fsWriteFile", "Write a file whole, with its missing parents, or create a directory.", (*Set).toolWrite),
	tool("fsEditFile", "Replace a text in a file. It must occur exactly once unless replaceAll is set.", (*Set).toolEdit),
	tool("fsDeleteFileOrDirectory", "Delete a file, an empty directory or, with recursive, any directory.", (*Set).toolDelete),

	tool("codegenFileSearch", "Find files whose path is like the query, the best first.", (*Set).toolFind),
	tool("codegenCodebaseSearch", "Find code by its meaning. There is no index here: use codegenGrepSearch.", (*Set).toolMeaning),
	tool("codegenGrepSearch", "Find the lines that match a regular expression, as JSON lines like those of ripgrep. Patterns are globs of file names, or of paths relative to the working directory.", (*Set).toolGrep),
	tool("codegenReadFileRange", "Read some lines of a text file.", (*Set).toolReadRange),
	tool("codegenListDir", "List a directory of the workspace.", (*Set).toolListDir),
	tool("codegenReapply", "Apply the last edit again. It is not available here: use fsEditFile.", (*Set).toolReapply),
	tool("codegenParallelApply", "Apply one edit in several places. It is not available here: use fsEditFile.", (*Set).toolParallelApply),
}

// tool adapts a typed function. Its schemas are those of its types; its error is
// a result that says so.
func tool[In, Out any](name, description string, fn func(b *Set, ctx context.Context, in In) (Out, error)) func(*Set, *mcp.Server) {
	return func(b *Set, s *mcp.Server) {
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: description}, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (_ *mcp.CallToolResult, out Out, err error) {
			defer func() { // it runs in a goroutine of the library: nobody else would
				if v := recover(); v != nil {
					slog.ErrorContext(ctx, "handler panicked", "route", name, "err", v, "stack", string(debug.Stack()))
					err = errors.New("internal error")
				}
			}()
			out, err = fn(b, ctx, in)
			if err != nil {
				p := doze.Public(err)
				if p.Kind == doze.Internal {
					slog.ErrorContext(ctx, "request failed", "route", name, "err", err)
				}
				return nil, out, errors.New(p.Message)
			}
			return nil, out, nil
		})
	}
}

// Set offers the tools.
type Set struct {
	places    place.Finder
	files     *file.Calls
	processes *process.Table
	vars      *environ.Variables
	endpoint  func() http.Handler // made by the first call: it is not small
}

// New returns the tools for the files and processes of a sandbox.
func New(places place.Finder, files *file.Calls, processes *process.Table, vars *environ.Variables) *Set {
	b := &Set{places: places, files: files, processes: processes, vars: vars}
	b.endpoint = sync.OnceValue(b.newMCP)
	return b
}

// newMCP returns the endpoint of the Model Context Protocol. Every call stands
// alone: there are no sessions, so none is lost when the sandbox sleeps.
func (b *Set) newMCP() http.Handler {
	s := mcp.NewServer(&mcp.Implementation{Name: "Sandbox API Server", Version: "1.0.0"}, nil)
	for _, add := range tools {
		add(b, s)
	}
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
		Stateless:           true,
		JSONResponse:        true,
		MaxRequestBodyBytes: mcpMax.Bytes,
		// The edge calls with the name of the sandbox, from its own address.
		DisableLocalhostProtection: true,
	})
}

// Serve answers a message. What kinds of answers a caller accepts does not
// matter: there is one.
func (b *Set) Serve(w http.ResponseWriter, r *http.Request, _ string) error {
	text, err := body.Read(w, r, mcpMax) // as of all calls: it counts
	if err != nil {
		return err
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	b.endpoint().ServeHTTP(w, r)
	return nil
}

// Refuse tells that there is no stream of messages from us.
func (b *Set) Refuse(w http.ResponseWriter, _ *http.Request, _ string) error {
	w.Header().Set("Allow", http.MethodPost)
	httpx.WriteJSON(w, http.StatusMethodNotAllowed, map[string]string{"error": fmt.Sprintf("send messages with %s", http.MethodPost)})
	return nil
}
