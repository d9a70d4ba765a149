package agent

import (
	"net/url"
	"strings"

	"github.com/dozehq/doze/internal/agentapi"
)

// routes returns the API of an agent.
func (a *Agent) routes() routeTable {
	return routeTable{
		{"GET", "/", answer(a.system.welcome)},
		{"POST", "/", answer(a.system.welcome)},
		{"PUT", "/", answer(a.system.welcome)},
		{"DELETE", "/", answer(a.system.welcome)},
		{"PATCH", "/", answer(a.system.welcome)},
		{"GET", "/health", answer(a.system.health)},
		{"POST", "/upgrade", a.system.skipUpgrade},
		{"POST", "/environment/reload", answer(a.vars.reload)},

		{"GET", "/filesystem/tree/{path...}", answer(a.trees.readTree)},
		{"PUT", "/filesystem/tree/{path...}", a.trees.writeTree},
		{"DELETE", "/filesystem/tree/{path...}", answer(a.trees.deleteTree)},
		{"GET", "/filesystem/{path...}", a.files.readFile},
		{"PUT", "/filesystem/{path...}", a.files.writeFile},
		{"DELETE", "/filesystem/{path...}", answer(a.files.deleteFile)},

		{"GET", "/filesystem-multipart", answer(a.files.listUploads)},
		{"POST", "/filesystem-multipart/initiate/{path...}", a.files.beginUpload},
		{"PUT", "/filesystem-multipart/{id}/part", answer(a.files.putPart)},
		{"GET", "/filesystem-multipart/{id}/parts", answer(a.files.readParts)},
		{"POST", "/filesystem-multipart/{id}/complete", accept(a.files.completeUpload)},
		{"DELETE", "/filesystem-multipart/{id}/abort", answer(a.files.abortUpload)},

		{"GET", "/filesystem-find/{path...}", answer(a.files.find)},
		{"GET", "/filesystem-search/{path...}", answer(a.files.fuzzyFind)},
		{"GET", "/filesystem-content-search/{path...}", answer(a.files.grep)},

		{"GET", "/watch/filesystem/{path...}", a.files.watchFiles},

		{"GET", "/process", answer(a.calls.listProcesses)},
		{"POST", "/process", a.calls.runProcess},
		{"GET", "/process/{id}", answer(a.calls.readProcess)},
		{"DELETE", "/process/{id}", answer(a.calls.stopProcess)},
		{"DELETE", "/process/{id}/kill", answer(a.calls.killProcess)},
		{"GET", "/process/{id}/logs", answer(a.calls.readLogs)},
		{"GET", "/process/{id}/logs/stream", a.calls.followLogs},
		{"POST", "/process/{id}/stdin", a.calls.writeStdin},
		{"DELETE", "/process/{id}/stdin", answer(a.calls.closeStdin)},

		{"GET", "/network/process/{id}/ports", answer(a.monitors.listPorts)},
		{"POST", "/network/process/{id}/monitor", a.monitors.startMonitor},
		{"DELETE", "/network/process/{id}/monitor", answer(a.monitors.stopMonitor)},
		{"PUT", "/network/tunnel/config", accept(setTunnel)},
		{"DELETE", "/network/tunnel", answer(deleteTunnel)},

		{"GET", "/terminal", a.terminals.showTerminal},
		{"GET", "/terminal/ws", a.terminals.openTerminal},

		{"POST", "/archive/export", a.archives.export},
		{"GET", "/archive/status", answer(a.archives.archiveStatus)},
		{"POST", "/archive/resume", answer(a.archives.resume)},

		{"PUT", "/codegen/fastapply/{path...}", answer(refuseCodegen)},
		{"GET", "/codegen/reranking/{path...}", answer(refuseCodegen)},

		{"POST", "/mcp", a.tools.serveMCP},
		{"GET", "/mcp", a.tools.refuseMCP},

		private(agentapi.AskState, answer(a.state)),
		private(agentapi.TellWoken, answer(a.system.wake)),
		private(agentapi.Identify, a.identity.become),
		private(agentapi.Quiesce, a.archives.quiesce),
		private(agentapi.Unpack, a.archives.unpack),
		private(agentapi.Stop, answer(a.stop)),
		private(agentapi.PrepareDrive, a.mounts.prepareDrive),
		private(agentapi.ServeDrive, a.mounts.serveDrive),
		private(agentapi.DropDrive, answer(a.mounts.dropDrive)),
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
	rt, _ := anybody.routes().match(method, decoded, escaped)
	if rt == nil {
		return Route{}, false
	}
	return Route{rt.Method, rt.Pattern}, true
}
