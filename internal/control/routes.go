package control

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/httpx"
)

// prefix is the version segment in front of every path (spec section 9).
const prefix = "/v0"

// A route is one row of the control API.
type route struct {
	method  string
	pattern string // segments; one in braces is a path value
	scope   string // what a credential needs; empty is open to everybody
	endpoint
}

// routes is the whole control API. If it is not here, we do not serve it.
var routes = complete(slices.Concat(table, logins()))

// complete fills in what rows say by their place in the table.
func complete(all []route) []route {
	for i := range all {
		rt := &all[i]
		rt.action = actionOf(*rt, all)
		rt.collects = rt.method == http.MethodPost && strings.HasSuffix(rt.action, ".create")
	}
	return all
}

var table = []route{
	{"GET", "/health", "", read((*Server).health)},
	{"GET", "/openapi.json", "", described()},

	{"GET", "/sandboxes", "sandboxes:list", read((*Server).listSandboxes).asks("status", "externalId", "showTerminated")},
	{"POST", "/sandboxes", "sandboxes:create", write[doze.Sandbox]((*Server).createSandbox).asks("createIfNotExist").together()},
	{"GET", "/sandboxes/{name}", "sandboxes:get", read((*Server).sandbox).asks("show_secrets")},
	{"PUT", "/sandboxes/{name}", "sandboxes:update", write[doze.Sandbox]((*Server).updateSandbox)},
	{"DELETE", "/sandboxes/{name}", "sandboxes:delete", read((*Server).deleteSandbox)},
	{"GET", "/sandboxes/by-external-id/{externalId}", "sandboxes:get", read((*Server).sandboxByExternalID)},
	{"GET", "/configuration", "configurations:list", read((*Server).configuration)},
	{"GET", "/locations", "locations:list", read((*Server).locations)},
	{"GET", "/publicIps", "locations:list", read((*Server).publicIPs).asks("region")},
	{"GET", "/features", "configurations:list", read((*Server).features)},
	{"GET", "/features/{feature}", "configurations:list", read((*Server).feature)},
	{"GET", "/observability/logs", "sandboxes:get", read((*Server).logs).asks("start", "end", "resourceType", "workloadIds")},
	{"GET", "/sandbox/hub", "sandboxhub:list", read((*Server).hub)},

	{"GET", "/sandboxes/{name}/previews", "sandboxes:get", read((*Server).listPreviews)},
	{"POST", "/sandboxes/{name}/previews", "sandboxes:update", write[doze.Preview]((*Server).createPreview).asks("force").together()},
	{"GET", "/sandboxes/{name}/previews/{preview}", "sandboxes:get", read((*Server).preview)},
	{"PUT", "/sandboxes/{name}/previews/{preview}", "sandboxes:update", write[doze.Preview]((*Server).updatePreview).asks("force").together()},
	{"DELETE", "/sandboxes/{name}/previews/{preview}", "sandboxes:update", read((*Server).deletePreview)},
	{"GET", "/sandboxes/{name}/previews/{preview}/tokens", "sandboxes:control", read((*Server).listPreviewTokens).revealing()},
	{"POST", "/sandboxes/{name}/previews/{preview}/tokens", "sandboxes:control", write[doze.PreviewToken]((*Server).createPreviewToken)},
	{"DELETE", "/sandboxes/{name}/previews/{preview}/tokens/{token}", "sandboxes:control", read((*Server).deletePreviewToken)},

	{"GET", "/sandboxes/{name}/traces", "sandboxes:get", read((*Server).traces)},
	{"POST", "/sandboxes/{name}/tickets", "sandboxes:control", read((*Server).createTicket)},

	{"GET", "/sandboxes/{name}/schedules", "sandboxes:get", read((*Server).schedulesOf).asks("show_secrets", "type")},
	{"POST", "/sandboxes/{name}/schedules", "sandboxes:update", write[doze.Schedule]((*Server).createSchedule)},
	{"GET", "/sandboxes/{name}/schedules/{schedule}", "sandboxes:get", read((*Server).schedule).asks("show_secrets")},
	{"PUT", "/sandboxes/{name}/schedules/{schedule}", "sandboxes:update", write[doze.Schedule]((*Server).updateSchedule)},
	{"DELETE", "/sandboxes/{name}/schedules/{schedule}", "sandboxes:update", read((*Server).deleteSchedule)},
	{"GET", "/sandboxes/{name}/schedule-executions", "sandboxes:get", read((*Server).executionsOf).asks("status", "schedule", "since", "until")},
	{"GET", "/schedules", "sandboxes:list", read((*Server).listSchedules).asks("show_secrets", "type", "sandbox")},
	{"GET", "/schedules/metrics", "sandboxes:list", read((*Server).scheduleMetrics).asks("since", "until")},
	{"GET", "/schedule-executions", "sandboxes:list", read((*Server).listExecutions).asks("status", "sandbox", "schedule", "since", "until")},

	{"GET", "/snapshots", "sandboxes:list", read((*Server).listSnapshots).asks("status")},
	{"POST", "/snapshots", "sandboxes:update", write[doze.SnapshotRequest]((*Server).createSnapshot)},
	{"GET", "/snapshots/{snapshot}", "sandboxes:get", read((*Server).snapshot)},
	{"DELETE", "/snapshots/{snapshot}", "sandboxes:delete", read((*Server).deleteSnapshot)},
	{"POST", "/snapshots/{snapshot}/fork", "sandboxes:create", write[doze.ForkRequest]((*Server).forkSnapshot)},
	{"GET", "/sandboxes/{name}/snapshots", "sandboxes:get", read((*Server).snapshotsOf)},
	{"POST", "/sandboxes/{name}/snapshots", "sandboxes:update", write[doze.SnapshotRequest]((*Server).createSnapshot)},
	{"DELETE", "/sandboxes/{name}/snapshots/{snapshot}", "sandboxes:delete", read((*Server).deleteSnapshot)},
	{"POST", "/sandboxes/{name}/snapshots/{snapshot}/restore", "sandboxes:update", read((*Server).restoreSnapshot)},
	{"POST", "/sandboxes/{name}/fork", "sandboxes:create", write[doze.ForkRequest]((*Server).forkSandbox)},
	{"POST", "/sandboxes/{name}/archive", "sandboxes:update", read((*Server).archiveSandbox)},
	{"POST", "/sandboxes/{name}/unarchive", "sandboxes:update", read((*Server).unarchiveSandbox)},

	{"GET", "/volumes", "volumes:list", read((*Server).listVolumes).asks("status", "externalId")},
	{"POST", "/volumes", "volumes:create", write[doze.Volume]((*Server).createVolume)},
	{"GET", "/volumes/{volume}", "volumes:get", read((*Server).volume)},
	{"GET", "/volumes/by-external-id/{externalId}", "volumes:get", read((*Server).volumeByExternalID)},
	{"PUT", "/volumes/{volume}", "volumes:create", write[doze.Volume]((*Server).updateVolume)},
	{"DELETE", "/volumes/{volume}", "volumes:delete", read((*Server).deleteVolume)},

	{"GET", "/drives", "volumes:list", read((*Server).listDrives).asks("status", "externalId")},
	{"POST", "/drives", "volumes:create", write[doze.Drive]((*Server).createDrive)},
	{"GET", "/drives/jwks.json", "", read((*Server).driveKeys)},
	{"GET", "/drives/{drive}", "volumes:get", read((*Server).drive)},
	{"GET", "/drives/by-external-id/{externalId}", "volumes:get", read((*Server).driveByExternalID)},
	{"PUT", "/drives/{drive}", "volumes:create", write[doze.Drive]((*Server).updateDrive)},
	{"DELETE", "/drives/{drive}", "volumes:delete", read((*Server).deleteDrive)},
	{"POST", "/drives/{drive}/access-token", "volumes:get", read((*Server).driveToken)},

	{"GET", "/volume_templates", "volumeTemplates:list", read((*Server).listVolumeTemplates)},
	{"POST", "/volume_templates", "volumeTemplates:create", offer((*Server).createVolumeTemplate).asks("upload", "version").together()},
	{"GET", "/volume_templates/{template}", "volumeTemplates:get", read((*Server).volumeTemplate)},
	{"PUT", "/volume_templates/{template}", "volumeTemplates:upsert", offer((*Server).putVolumeTemplate).asks("upload", "version").together()},
	{"DELETE", "/volume_templates/{template}", "volumeTemplates:delete", read((*Server).deleteVolumeTemplate)},
	{"DELETE", "/volume_templates/{template}/versions/{version}", "volumeTemplates:delete", read((*Server).deleteVersion)},
	{"PUT", "/uploads/{upload}", "", read((*Server).upload).takes(tarType).asks("token")}, // the address is the credential

	{"GET", "/customdomains", "customdomains:list", read((*Server).listDomains)},
	{"POST", "/customdomains", "customdomains:create", write[doze.CustomDomain]((*Server).createDomain)},
	{"GET", "/customdomains/{domain}", "customdomains:get", read((*Server).domain)},
	{"PUT", "/customdomains/{domain}", "customdomains:update", write[doze.CustomDomain]((*Server).updateDomain)},
	{"DELETE", "/customdomains/{domain}", "customdomains:delete", read((*Server).deleteDomain)},
	{"POST", "/customdomains/{domain}/verify", "customdomains:update", read((*Server).verifyDomain)},
	{"GET", "/customdomains/{domain}/share", "customdomains:get", read((*Server).listShares)},
	{"POST", "/customdomains/{domain}/share", "customdomains:update", write[shareRequest]((*Server).shareDomain)},
	{"DELETE", "/customdomains/{domain}/share/{target}", "customdomains:update", read((*Server).unshareDomain)},

	{"GET", "/images", access.Admin, read((*Server).listImages)},
	{"POST", "/images", access.Admin, write[doze.ImageRequest]((*Server).createImage)},
	{"DELETE", "/images", access.Admin, read((*Server).cleanImages)},
	{"GET", "/images/{type}/{image}", access.Admin, read((*Server).image)},
	{"DELETE", "/images/{type}/{image}", access.Admin, read((*Server).deleteImage)},
	{"DELETE", "/images/{type}/{image}/tags/{tag}", access.Admin, read((*Server).deleteImage)},
	{"GET", "/images/{type}/{image}/share", access.Admin, read((*Server).listImageShares)},
	{"POST", "/images/{type}/{image}/share", access.Admin, write[shareRequest]((*Server).shareImage)},
	{"DELETE", "/images/{type}/{image}/share/{target}", access.Admin, read((*Server).unshareImage)},
	{"GET", "/pending-image-shares", access.Admin, read((*Server).pendingImageShares).asks("direction")},
	{"POST", "/pending-image-shares/{share}/accept", access.Admin, read((*Server).answerImageShare)},
	{"POST", "/pending-image-shares/{share}/decline", access.Admin, read((*Server).answerImageShare)},

	{"GET", "/policies", "policies:list", read((*Server).listPolicies)},
	{"POST", "/policies", "policies:create", write[doze.Policy]((*Server).createPolicy)},
	{"GET", "/policies/{policy}", "policies:get", read((*Server).policy)},
	{"PUT", "/policies/{policy}", "policies:update", write[doze.Policy]((*Server).updatePolicy)},
	{"DELETE", "/policies/{policy}", "policies:delete", read((*Server).deletePolicy)},
	{"GET", "/policies/{policy}/usages", "policies:get", read((*Server).policyUsages)},

	{"GET", "/vpcs", access.Admin, read((*Server).listVPCs)},
	{"POST", "/vpcs", access.Admin, write[doze.NetworkResource]((*Server).createVPC)},
	{"GET", "/vpcs/{vpc}", access.Admin, read((*Server).vpcOf)},
	{"DELETE", "/vpcs/{vpc}", access.Admin, read((*Server).deleteVPC)},
	{"GET", "/vpcs/{vpc}/egressgateways", access.Admin, read((*Server).listGateways)},
	{"POST", "/vpcs/{vpc}/egressgateways", access.Admin, write[doze.NetworkResource]((*Server).createGateway)},
	{"GET", "/vpcs/{vpc}/egressgateways/{gateway}", access.Admin, read((*Server).gatewayOf)},
	{"DELETE", "/vpcs/{vpc}/egressgateways/{gateway}", access.Admin, read((*Server).deleteGateway)},
	{"GET", "/vpcs/{vpc}/egressgateways/{gateway}/ips", access.Admin, read((*Server).listIPs)},
	{"POST", "/vpcs/{vpc}/egressgateways/{gateway}/ips", access.Admin, write[doze.NetworkResource]((*Server).createIP)},
	{"GET", "/vpcs/{vpc}/egressgateways/{gateway}/ips/{ip}", access.Admin, read((*Server).ipOf)},
	{"DELETE", "/vpcs/{vpc}/egressgateways/{gateway}/ips/{ip}", access.Admin, read((*Server).deleteIP)},
	{"GET", "/egressgateways", access.Admin, read((*Server).allGateways)},
	{"GET", "/egressgateways/usage", access.Admin, read((*Server).gatewayUsage)},
	{"GET", "/egressips", access.Admin, read((*Server).allIPs)},

	{"GET", "/secrets", access.Admin, read((*Server).listSecrets)},
	{"POST", "/secrets", access.Admin, write[doze.Secret]((*Server).createSecret)},
	{"GET", "/secrets/{secret}", access.Admin, read((*Server).secret)},
	{"PUT", "/secrets/{secret}", access.Admin, write[doze.Secret]((*Server).updateSecret)},
	{"DELETE", "/secrets/{secret}", access.Admin, read((*Server).deleteSecret)},

	{"GET", "/api_keys", "apiKey:list", read((*Server).listAPIKeys)},
	{"POST", "/api_keys", "apiKey:write", write[keyRequest]((*Server).createAPIKey)},
	{"DELETE", "/api_keys/{id}", "apiKey:write", read((*Server).deleteAPIKey)},

	{"GET", "/workspaces", "workspaces:list", read((*Server).listWorkspaces)},
	{"POST", "/workspaces", "workspaces:create", write[workspaceRequest]((*Server).createWorkspace)},
	{"POST", "/workspaces/availability", "workspaces:create", write[nameRequest]((*Server).workspaceAvailability).asks("withReason").together()},
	{"GET", "/workspaces/{workspace}", "workspaces:get", read((*Server).workspace).asks("countResources")},
	{"PUT", "/workspaces/{workspace}", "workspaces:update", write[workspaceRequest]((*Server).updateWorkspace)},
	{"DELETE", "/workspaces/{workspace}", "workspaces:delete", read((*Server).deleteWorkspace)},
	{"DELETE", "/workspaces/{workspace}/leave", "workspaces:leave", read((*Server).leaveWorkspace)},
	{"GET", "/workspaces/{workspace}/quotas", "workspaces:get", read((*Server).quotasOf)},
	{"PUT", "/workspaces/{workspace}/quotas", access.Admin, write[quotaRequest]((*Server).setQuotas).by((*Server).governs)},
	{"POST", "/workspaces/{workspace}/accept", anyScope, read((*Server).joinWorkspace)},
	{"POST", "/workspaces/{workspace}/decline", anyScope, read((*Server).refuseWorkspace)},

	{"GET", "/quotas", "workspaces:get", read((*Server).quotas)},

	{"GET", "/users", "workspaces:get", read((*Server).listUsers)},
	{"POST", "/users", "workspaces:invite", write[inviteRequest]((*Server).inviteUser)},
	{"PUT", "/users/{user}", "workspaces:update", write[roleRequest]((*Server).updateUser)},
	{"DELETE", "/users/{user}", "workspaces:remove", read((*Server).removeUser)},
	{"GET", "/platform/users", access.Admin, read((*Server).listPlatformUsers)},
	{"PUT", "/platform/users/{user}", access.Admin, write[rightsRequest]((*Server).updatePlatformUser).by((*Server).operates)},
	{"PUT", "/password", anyScope, write[passwordRequest]((*Server).setPassword)},
	{"GET", "/invitations", "invitations:list", read((*Server).listInvitations)},
	{"POST", "/invitations/accept", "", write[acceptRequest]((*Server).acceptInvitation)},
	{"POST", "/invitations/decline", "", write[declineRequest]((*Server).declineInvitation)},

	{"GET", "/service_accounts", access.Admin, read((*Server).listServiceAccounts)},
	{"POST", "/service_accounts", access.Admin, write[accountRequest]((*Server).createServiceAccount)},
	{"PUT", "/service_accounts/{account}", access.Admin, write[accountRequest]((*Server).updateServiceAccount)},
	{"DELETE", "/service_accounts/{account}", access.Admin, read((*Server).deleteServiceAccount)},
	{"GET", "/service_accounts/{account}/api_keys", access.Admin, read((*Server).listServiceKeys)},
	{"POST", "/service_accounts/{account}/api_keys", access.Admin, write[keyRequest]((*Server).createServiceKey)},
	{"DELETE", "/service_accounts/{account}/api_keys/{key}", access.Admin, read((*Server).deleteServiceKey)},

	{"GET", "/oauth/clients", access.Admin, read((*Server).listOAuthClients)},
	{"POST", "/oauth/clients", access.Admin, write[clientRequest]((*Server).createOAuthClient)},
	{"DELETE", "/oauth/clients/{client}", access.Admin, read((*Server).deleteOAuthClient)},

	{"GET", "/audit", access.Admin, read((*Server).listAudit).asks(auditWords...)},
	{"GET", "/audit/export", access.Admin, exportAudit()},
}

// Route is a row of the table for those who check that something holds for
// every one: its method, its pattern below /v0, the scope it needs, and its name
// in the audit log.
type Route struct{ Method, Pattern, Scope, Action string }

// Routes returns the table.
func Routes() []Route {
	all := make([]Route, len(routes))
	for i, rt := range routes {
		all[i] = Route{rt.method, rt.pattern, rt.scope, rt.action}
	}
	return all
}

// RouteOf returns the row that serves a method and an escaped path, with its
// /v0; or false.
func RouteOf(method, path string) (Route, bool) {
	i, _, _ := match(method, path)
	if i < 0 {
		return Route{}, false
	}
	return Routes()[i], true
}

// anyScope is the scope of a route that is about the caller alone, who need not
// be in any workspace: its handler decides.
const anyScope = "*"

// Handler returns the control API below /v0. It matches the escaped path as it
// came: nothing is cleaned, and nothing redirects. Who has no credential does
// not learn which paths there are.
func (s *Server) Handler() http.Handler {
	handlers := make([]http.Handler, len(routes))
	for i, rt := range routes {
		handlers[i] = s.attended(rt, s.guard(rt.scope, s.journaled(rt, examine(rt.endpoint, rt.handler(s)))))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, rec := time.Now(), &recorder{ResponseWriter: w, status: http.StatusOK}
		i, values, allowed := match(r.Method, r.URL.EscapedPath())
		e := entryOf(r)
		r = r.WithContext(audit.With(r.Context(), e))
		w.Header().Set(requestIDHeader, e.RequestID)
		if i >= 0 {
			r.Pattern = routes[i].method + " " + prefix + routes[i].pattern
			for name, v := range values {
				r.SetPathValue(name, v)
			}
			routes[i].note(e, r)
			handlers[i].ServeHTTP(rec, r)
		} else {
			e.Object = doze.AuditObject{Kind: "path", Name: r.URL.EscapedPath()}
			s.known(unserved(allowed)).ServeHTTP(rec, r)
		}
		s.close(e, r, i >= 0 && routes[i].scope == "", rec)
		slog.DebugContext(r.Context(), "request", "request", e.RequestID, "method", r.Method, "route", r.Pattern, "status", rec.status, "took", time.Since(began))
	})
}

// unserved answers what is not in the table; allowed are the methods that are,
// for the same path.
func unserved(allowed []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(allowed) == 0 {
			httpx.WriteError(w, r, doze.Errorf(doze.NotFound, "there is no such path; paths begin with %s", prefix))
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		httpx.WriteJSON(w, http.StatusMethodNotAllowed, map[string]any{
			"error": "method_not_allowed", "code": http.StatusMethodNotAllowed,
			"message": "this path answers " + strings.Join(allowed, ", ") + " only",
		})
	})
}

// namedMax bounds the workspaces that an error names.
const namedMax = 10

// errNowhere is for a caller who is not, or no longer, where the credential is
// from.
func errNowhere(c access.Caller) error {
	others := slices.Sorted(maps.Keys(c.Roles))
	if len(others) == 0 {
		return doze.Errorf(doze.Forbidden, "the owner of the credential is in no workspace: accept an invitation first, and name that one in the header x-blaxel-workspace")
	}
	return doze.Errorf(doze.Forbidden, "the owner of the credential is not in its workspace, or has left it: name another one in the header x-blaxel-workspace, such as %s",
		strings.Join(others[:min(len(others), namedMax)], ", "))
}

// guard lets a request through to h if its caller may what scope allows. An
// empty scope is open to everybody.
func (s *Server) guard(scope string, h http.Handler) http.Handler {
	if scope == "" {
		return h
	}
	return s.known(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := callerOf(r.Context()); scope != anyScope && !c.May(scope) {
			err := doze.Errorf(doze.Forbidden, "this call needs the scope %s", scope)
			if c.Workspace == "" {
				err = errNowhere(c)
			}
			httpx.WriteError(w, r, err)
			return
		}
		if strings.HasPrefix(scope, "sandboxes:") {
			s.expiry.settle(r.Context())
		}
		h.ServeHTTP(w, r)
	}))
}

// known lets a request through to h if its credential is good and not too busy,
// it asks for a version that we know, and its query can be read.
func (s *Server) known(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.Credentials.Authenticate(r)
		who := c
		if stranger, ok := errors.AsType[*access.StrangerError](err); ok {
			who = stranger.Caller
		}
		place(audit.Of(r.Context()), who)
		if err == nil {
			err = s.Quotas.Take(w.Header(), c.Workspace, c.Key)
		}
		if err == nil {
			_, err = versionOf(r)
		}
		if err == nil {
			err = checkQuery(r.URL)
		}
		if err != nil {
			if doze.Public(err).Kind == doze.Unauthenticated {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			httpx.WriteError(w, r, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(withCaller(r.Context(), c)))
	})
}

// checkQuery refuses a query of which a part would be ignored.
func checkQuery(u *url.URL) error {
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return doze.Wrap(err, doze.Invalid, "the query cannot be read: write %%3B for a semicolon and %%25 for a percent sign")
	}
	return nil
}

// match finds the row of a request, or -1 and the methods that its path has.
func match(method, path string) (row int, values map[string]string, allowed []string) {
	rest, ok := strings.CutPrefix(path, prefix+"/")
	if !ok {
		return -1, nil, nil
	}
	segments := strings.Split(rest, "/")
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for i, rt := range routes {
		values, ok := fit(rt.pattern, segments)
		if ok && rt.method == method {
			return i, values, nil
		}
		if ok && !slices.Contains(allowed, rt.method) {
			allowed = append(allowed, rt.method)
		}
	}
	return -1, nil, allowed
}

// fit compares the segments of an escaped path with a pattern.
func fit(pattern string, segments []string) (map[string]string, bool) {
	want := strings.Split(pattern[1:], "/")
	if len(want) != len(segments) {
		return nil, false
	}
	values := map[string]string{}
	for i, w := range want {
		name, isValue := strings.CutPrefix(w, "{")
		if !isValue {
			if segments[i] != w {
				return nil, false
			}
			continue
		}
		v, err := url.PathUnescape(segments[i])
		if err != nil || v == "" {
			return nil, false
		}
		values[strings.TrimSuffix(name, "}")] = v
	}
	return values, true
}

// siblingsOf are, for each path of the table up to a value, the segments that
// other rows have in its place. Values are {} in it.
func siblingsOf(all []route) map[string][]string {
	names := map[string][]string{}
	for _, rt := range all {
		path := ""
		for segment := range strings.SplitSeq(rt.pattern[1:], "/") {
			if !strings.HasPrefix(segment, "{") {
				names[path+"/{}"] = append(names[path+"/{}"], segment)
				path += "/" + segment
				continue
			}
			path += "/{}"
		}
	}
	return names
}

// checkFree adds that a new resource at a path of the table has the name of a
// sibling: some of its paths would be taken for those of that.
func (s *Server) checkFree(p *doze.Problems, field, at, name string) {
	if slices.Contains(s.siblings[at], name) {
		p.Add(field, "is %q, which paths of this API have in that place: choose another name", name)
	}
}

// recorder notes the status of a response, and tells clients not to repeat
// what is a conflict each time: some of them do so after any 409.
type recorder struct {
	http.ResponseWriter
	status int
	name   string // of the error, if it is one
}

// Unwrap lets http.ResponseController reach what this type does not have.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Fails implements [httpx.Failure].
func (w *recorder) Fails(name string) { w.name = name }

func (w *recorder) WriteHeader(status int) {
	w.status = status
	if status == http.StatusConflict {
		w.Header().Set("x-should-retry", "false")
	}
	w.ResponseWriter.WriteHeader(status)
}

// The versions of the interface (section 1 of the public API). The oldest is
// the default.
const (
	bareLists  = "2026-04-16"
	pagedLists = "2026-04-28"
)

// versionOf returns the version that a request asks for.
func versionOf(r *http.Request) (string, error) {
	asked := r.Header.Get("Blaxel-Version")
	switch v := strings.TrimSuffix(asked, ".preview"); v {
	case "":
		if asked == "" {
			return bareLists, nil
		}
	case bareLists, pagedLists:
		return v, nil
	}
	return "", &doze.Error{
		Kind: doze.Invalid, Name: doze.NameVersion,
		Message: "the header blaxel-version must be " + bareLists + " or " + pagedLists,
	}
}

type callerKey struct{}

func withCaller(ctx context.Context, c access.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) access.Caller {
	c, _ := ctx.Value(callerKey{}).(access.Caller)
	return c
}

func (s *Server) health(context.Context, *http.Request) (map[string]string, error) {
	return map[string]string{"status": "ok"}, nil
}
