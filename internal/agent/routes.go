package agent

import (
	"net/url"
	"reflect"
	"strings"

	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/export"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/port"
	"github.com/dozehq/doze/internal/agent/process"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/system"
	"github.com/dozehq/doze/internal/agent/tool"
	"github.com/dozehq/doze/internal/agent/tree"
	"github.com/dozehq/doze/internal/agent/tunnel"
	"github.com/dozehq/doze/internal/agent/watch"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/manual"
)

// routes returns the API of an agent.
func (a *Agent) routes() route.Table {
	return route.Table{
		row("GET", "/", route.Answer(a.system.Welcome)),
		row("POST", "/", route.Answer(a.system.Welcome)),
		row("PUT", "/", route.Answer(a.system.Welcome)),
		row("DELETE", "/", route.Answer(a.system.Welcome)),
		row("PATCH", "/", route.Answer(a.system.Welcome)),
		row("GET", "/openapi.json", route.Raw[route.Bytes, route.Bytes](manual.Serve)),
		row("GET", "/health", route.Answer(a.health)),
		row("POST", "/upgrade", route.Raw[system.UpgradeRequest, system.UpgradeAnswer](a.system.Upgrade)),
		row("POST", "/environment/reload", route.Answer(a.vars.Reload)),

		row("GET", "/filesystem/tree/{path...}", route.Answer(a.trees.Read)),
		row("PUT", "/filesystem/tree/{path...}", route.Raw[tree.Files, file.Directory](a.trees.Write)),
		row("DELETE", "/filesystem/tree/{path...}", route.Answer(a.trees.Delete)),
		row("GET", "/filesystem/{path...}", route.Raw[route.Bytes, file.Directory](a.files.Read)),
		row("PUT", "/filesystem/{path...}", route.Raw[file.Write, route.Success](a.files.Write)),
		row("DELETE", "/filesystem/{path...}", route.Answer(a.files.Delete)),

		row("GET", "/filesystem-multipart", route.Answer(a.files.Uploads)),
		row("POST", "/filesystem-multipart/initiate/{path...}", route.Raw[file.UploadRequest, file.UploadBegun](a.files.BeginUpload)),
		row("PUT", "/filesystem-multipart/{id}/part", route.Answer(a.files.PutPart)),
		row("GET", "/filesystem-multipart/{id}/parts", route.Answer(a.files.Parts)),
		row("POST", "/filesystem-multipart/{id}/complete", route.Accept(a.files.CompleteUpload)),
		row("DELETE", "/filesystem-multipart/{id}/abort", route.Answer(a.files.AbortUpload)),

		row("GET", "/filesystem-find/{path...}", route.Answer(a.files.Find)),
		row("GET", "/filesystem-search/{path...}", route.Answer(a.files.FuzzyFind)),
		row("GET", "/filesystem-content-search/{path...}", route.Answer(a.files.Grep)),

		row("GET", "/watch/filesystem/{path...}", route.Raw[route.Bytes, watch.Event](a.files.Watch)),

		row("GET", "/process", route.Answer(a.calls.List)),
		row("POST", "/process", route.Raw[command.Spec, process.Info](a.calls.Run)),
		row("GET", "/process/{id}", route.Answer(a.calls.Read)),
		row("DELETE", "/process/{id}", route.Answer(a.calls.Stop)),
		row("DELETE", "/process/{id}/kill", route.Answer(a.calls.Kill)),
		row("GET", "/process/{id}/logs", route.Answer(a.calls.Logs)),
		row("GET", "/process/{id}/logs/stream", route.Raw[route.Bytes, route.Bytes](a.calls.FollowLogs)),
		row("POST", "/process/{id}/stdin", route.Raw[route.Bytes, route.Success](a.calls.WriteStdin)),
		row("DELETE", "/process/{id}/stdin", route.Answer(a.calls.CloseStdin)),

		row("GET", "/network/process/{id}/ports", route.Answer(a.monitors.List)),
		row("POST", "/network/process/{id}/monitor", route.Raw[port.Callback, route.Success](a.monitors.Start)),
		row("DELETE", "/network/process/{id}/monitor", route.Answer(a.monitors.Stop)),
		row("PUT", "/network/tunnel/config", route.Accept(tunnel.Set)),
		row("DELETE", "/network/tunnel", route.Answer(tunnel.Delete)),

		row("GET", "/terminal", route.Raw[route.Bytes, route.Bytes](a.terminals.Show)),
		row("GET", "/terminal/ws", route.Raw[route.Bytes, route.Bytes](a.terminals.Open)),

		row("POST", "/archive/export", route.Raw[export.Request, export.Result](a.archives.Export)),
		row("GET", "/archive/status", route.Answer(a.archives.Status)),
		row("POST", "/archive/resume", route.Answer(a.archives.Resume)),

		row("PUT", "/codegen/fastapply/{path...}", route.Answer(tool.RefuseCodegen)),
		row("GET", "/codegen/reranking/{path...}", route.Answer(tool.RefuseCodegen)),

		row("GET", "/ssh", route.Raw[route.Bytes, route.Bytes](a.ssh.Open)),

		row("POST", "/mcp", route.Raw[route.Bytes, route.Bytes](a.tools.Serve)),
		row("GET", "/mcp", route.Raw[route.Bytes, route.Bytes](a.tools.Refuse)),

		route.Private(agentapi.AskState, route.Answer(a.state).Serve),
		route.Private(agentapi.TellWoken, route.Answer(a.system.Wake).Serve),
		route.Private(agentapi.Identify, a.identity.Become),
		route.Private(agentapi.SetVariables, a.identity.SetVariables),
		route.Private(agentapi.Quiesce, a.archives.Quiesce),
		route.Private(agentapi.Unpack, a.archives.Unpack),
		route.Private(agentapi.Stop, route.Answer(a.stop).Serve),
		route.Private(agentapi.PrepareDrive, a.mounts.Prepare),
		route.Private(agentapi.ServeDrive, a.mounts.Serve),
		route.Private(agentapi.DropDrive, route.Answer(a.mounts.Drop).Serve),
		route.Private(agentapi.CollectLogs, route.Answer(a.calls.Collect).Serve),
		route.Private(agentapi.AwaitLogs, route.Answer(a.calls.Await).Serve),
		route.Private(agentapi.BeginImage, route.Accept(a.entry.Begin).Serve),
		route.Private(agentapi.AwaitImage, route.Answer(a.entry.Await).Serve),
		route.Private(agentapi.ConnectLoopback, a.connectLoopback),
	}
}

// row returns a row of the table.
func row(method, pattern string, call route.Call) route.Route {
	return route.Route{Method: method, Pattern: pattern, Call: call}
}

// anybody is an agent of which only the routes are asked for.
var anybody = &Agent{}

// Route is one row of the API, for those who prove or say something of each.
type Route struct {
	Method, Pattern string
	In, Out         reflect.Type // of the JSON; nil without
}

func routeOf(rt *route.Route) Route { return Route{rt.Method, rt.Pattern, rt.In, rt.Out} }

// Routes returns the rows that callers can reach.
func Routes() (all []Route) {
	for _, rt := range anybody.routes() {
		if !strings.HasPrefix(rt.Pattern, agentapi.Prefix) {
			all = append(all, routeOf(&rt))
		}
	}
	return all
}

// RouteOf returns the row that serves a method and an escaped path; or false.
func RouteOf(method, escaped string) (Route, bool) {
	decoded, err := url.PathUnescape(escaped)
	if err != nil {
		return Route{}, false
	}
	rt, _ := anybody.routes().Match(method, decoded, escaped)
	if rt == nil {
		return Route{}, false
	}
	return routeOf(rt), true
}
