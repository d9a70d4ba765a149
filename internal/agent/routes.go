package agent

import (
	"net/url"
	"strings"

	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/tool"
	"github.com/dozehq/doze/internal/agent/tunnel"
	"github.com/dozehq/doze/internal/agentapi"
)

// routes returns the API of an agent.
func (a *Agent) routes() route.Table {
	return route.Table{
		{Method: "GET", Pattern: "/", Serve: route.Answer(a.system.Welcome)},
		{Method: "POST", Pattern: "/", Serve: route.Answer(a.system.Welcome)},
		{Method: "PUT", Pattern: "/", Serve: route.Answer(a.system.Welcome)},
		{Method: "DELETE", Pattern: "/", Serve: route.Answer(a.system.Welcome)},
		{Method: "PATCH", Pattern: "/", Serve: route.Answer(a.system.Welcome)},
		{Method: "GET", Pattern: "/health", Serve: route.Answer(a.system.Health)},
		{Method: "POST", Pattern: "/upgrade", Serve: a.system.SkipUpgrade},
		{Method: "POST", Pattern: "/environment/reload", Serve: route.Answer(a.vars.Reload)},

		{Method: "GET", Pattern: "/filesystem/tree/{path...}", Serve: route.Answer(a.trees.Read)},
		{Method: "PUT", Pattern: "/filesystem/tree/{path...}", Serve: a.trees.Write},
		{Method: "DELETE", Pattern: "/filesystem/tree/{path...}", Serve: route.Answer(a.trees.Delete)},
		{Method: "GET", Pattern: "/filesystem/{path...}", Serve: a.files.Read},
		{Method: "PUT", Pattern: "/filesystem/{path...}", Serve: a.files.Write},
		{Method: "DELETE", Pattern: "/filesystem/{path...}", Serve: route.Answer(a.files.Delete)},

		{Method: "GET", Pattern: "/filesystem-multipart", Serve: route.Answer(a.files.Uploads)},
		{Method: "POST", Pattern: "/filesystem-multipart/initiate/{path...}", Serve: a.files.BeginUpload},
		{Method: "PUT", Pattern: "/filesystem-multipart/{id}/part", Serve: route.Answer(a.files.PutPart)},
		{Method: "GET", Pattern: "/filesystem-multipart/{id}/parts", Serve: route.Answer(a.files.Parts)},
		{Method: "POST", Pattern: "/filesystem-multipart/{id}/complete", Serve: route.Accept(a.files.CompleteUpload)},
		{Method: "DELETE", Pattern: "/filesystem-multipart/{id}/abort", Serve: route.Answer(a.files.AbortUpload)},

		{Method: "GET", Pattern: "/filesystem-find/{path...}", Serve: route.Answer(a.files.Find)},
		{Method: "GET", Pattern: "/filesystem-search/{path...}", Serve: route.Answer(a.files.FuzzyFind)},
		{Method: "GET", Pattern: "/filesystem-content-search/{path...}", Serve: route.Answer(a.files.Grep)},

		{Method: "GET", Pattern: "/watch/filesystem/{path...}", Serve: a.files.Watch},

		{Method: "GET", Pattern: "/process", Serve: route.Answer(a.calls.List)},
		{Method: "POST", Pattern: "/process", Serve: a.calls.Run},
		{Method: "GET", Pattern: "/process/{id}", Serve: route.Answer(a.calls.Read)},
		{Method: "DELETE", Pattern: "/process/{id}", Serve: route.Answer(a.calls.Stop)},
		{Method: "DELETE", Pattern: "/process/{id}/kill", Serve: route.Answer(a.calls.Kill)},
		{Method: "GET", Pattern: "/process/{id}/logs", Serve: route.Answer(a.calls.Logs)},
		{Method: "GET", Pattern: "/process/{id}/logs/stream", Serve: a.calls.FollowLogs},
		{Method: "POST", Pattern: "/process/{id}/stdin", Serve: a.calls.WriteStdin},
		{Method: "DELETE", Pattern: "/process/{id}/stdin", Serve: route.Answer(a.calls.CloseStdin)},

		{Method: "GET", Pattern: "/network/process/{id}/ports", Serve: route.Answer(a.monitors.List)},
		{Method: "POST", Pattern: "/network/process/{id}/monitor", Serve: a.monitors.Start},
		{Method: "DELETE", Pattern: "/network/process/{id}/monitor", Serve: route.Answer(a.monitors.Stop)},
		{Method: "PUT", Pattern: "/network/tunnel/config", Serve: route.Accept(tunnel.Set)},
		{Method: "DELETE", Pattern: "/network/tunnel", Serve: route.Answer(tunnel.Delete)},

		{Method: "GET", Pattern: "/terminal", Serve: a.terminals.Show},
		{Method: "GET", Pattern: "/terminal/ws", Serve: a.terminals.Open},

		{Method: "POST", Pattern: "/archive/export", Serve: a.archives.Export},
		{Method: "GET", Pattern: "/archive/status", Serve: route.Answer(a.archives.Status)},
		{Method: "POST", Pattern: "/archive/resume", Serve: route.Answer(a.archives.Resume)},

		{Method: "PUT", Pattern: "/codegen/fastapply/{path...}", Serve: route.Answer(tool.RefuseCodegen)},
		{Method: "GET", Pattern: "/codegen/reranking/{path...}", Serve: route.Answer(tool.RefuseCodegen)},

		{Method: "POST", Pattern: "/mcp", Serve: a.tools.Serve},
		{Method: "GET", Pattern: "/mcp", Serve: a.tools.Refuse},

		route.Private(agentapi.AskState, route.Answer(a.state)),
		route.Private(agentapi.TellWoken, route.Answer(a.system.Wake)),
		route.Private(agentapi.Identify, a.identity.Become),
		route.Private(agentapi.Quiesce, a.archives.Quiesce),
		route.Private(agentapi.Unpack, a.archives.Unpack),
		route.Private(agentapi.Stop, route.Answer(a.stop)),
		route.Private(agentapi.PrepareDrive, a.mounts.Prepare),
		route.Private(agentapi.ServeDrive, a.mounts.Serve),
		route.Private(agentapi.DropDrive, route.Answer(a.mounts.Drop)),
	}
}

// anybody is an agent of which only the routes are asked for.
var anybody = &Agent{}

// Route is one row of the API, for those who prove something of each.
type Route struct{ Method, Pattern string }

// Routes returns the rows that callers can reach.
func Routes() (all []Route) {
	for _, rt := range anybody.routes() {
		if !strings.HasPrefix(rt.Pattern, agentapi.Prefix) {
			all = append(all, Route{rt.Method, rt.Pattern})
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
	return Route{rt.Method, rt.Pattern}, true
}
