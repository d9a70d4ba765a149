package api

import (
	"maps"
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/openapi"
)

// parameters are all that callers may ask in a query, and the headers that they
// choose a workspace and a version with.
var parameters = map[string]openapi.Parameter{
	"q":      query("q", "a part of the name", openapi.Schema{Type: "string", MaxLength: searchMax}),
	"limit":  query("limit", "how many; more than the most counts as that", openapi.Schema{Type: "integer", Minimum: new(1)}),
	"cursor": query("cursor", "the nextCursor of the page before", openapi.Schema{Type: "string"}),
	"anchor": query("anchor", "end is the last page; it needs a sort by createdAt", Words("start", "end")),
	"sort":   query("sort", "the order", Words(string(listing.NewestFirst), "createdAt:asc", "name:asc", "name:desc")),
	"status": query("status", "a status, or several with commas", openapi.Schema{Type: "string"}),
	"labels": query("labels", "those with this label, written key=value; repeat it for several, all of which must be there",
		openapi.Schema{Type: "array", Items: &openapi.Schema{Type: "string", Pattern: "^[^=]+="}, MaxItems: doze.LabelsMax}),
	"externalId":            query("externalId", "those with this id", openapi.Schema{Type: "string", MaxLength: doze.ExternalIDMax, Pattern: doze.ExternalIDPattern}),
	flags[ShowTerminated]:   query(flags[ShowTerminated], "those that ended too, while their records are kept", boolean),
	flags[ShowSecrets]:      query(flags[ShowSecrets], "values as they are; it needs the scope admin", boolean),
	flags[CreateIfNotExist]: query(flags[CreateIfNotExist], "answer the one of this name, if there is one", boolean),
	flags[Follow]:           query(flags[Follow], "until the build has ended", boolean),
	flags[SkipBuild]:        query(flags[SkipBuild], "no upload follows: the image is built already", boolean),
	flags[Force]:            query(flags[Force], "take the address from the preview that has it, or lose what only the node has", boolean),
	flags[Upload]:           query(flags[Upload], "answer where files are to be put: of a new version, or of an image to build", boolean),
	"version":               query("version", "the name of the version", openapi.Schema{Type: "string"}),
	"token":                 query("token", "a part of the address that the upload was offered at", openapi.Schema{Type: "string"}),
	flags[CountResources]:   query(flags[CountResources], "count what is in the workspace", boolean),
	flags[WithReason]:       query(flags[WithReason], "answer an object, and not a boolean", boolean),
	"tier":                  query("tier", "where the sandbox sleeps", WordsOr(doze.SleepPaused, doze.SleepPaused, doze.SleepDisk)),
	"type":                  query("type", "of schedules cron or at, and anything else is any; of lines of a log all, process, event or build", openapi.Schema{Type: "string"}),
	"sandbox":               query("sandbox", "those of one sandbox", openapi.Schema{Type: "string"}),
	"schedule":              query("schedule", "those of one schedule", openapi.Schema{Type: "string"}),
	"direction":             query("direction", "those that came, or that went out", Words("incoming", "outgoing")),
	"series":                query("series", "names of series, with commas", openapi.Schema{Type: "string"}),
	"from":                  query("from", "from this moment on, inclusive", Instant),
	"to":                    query("to", "before this moment", Instant),
	"step":                  query("step", "the length of a step, such as 10s, 5m or 1h", openapi.Schema{Type: "string"}),
	"since":                 query("since", "from this moment on, inclusive", Instant),
	"until":                 query("until", "before this moment", Instant),
	"start":                 query("start", "from this moment on, inclusive", Instant),
	"end":                   query("end", "before this moment", Instant),
	"resourceType":          query("resourceType", "what the workloads are: sandbox, image, or left out", openapi.Schema{Type: "string"}),
	"workloadIds":           query("workloadIds", "the names of the workloads, with commas", openapi.Schema{Type: "string"}),
	"severity":              query("severity", "lines of these severities, with commas, such as ERROR,WARNING", openapi.Schema{Type: "string"}),
	"search":                query("search", "lines with this text, in any case", openapi.Schema{Type: "string", MaxLength: doze.LogSearchMax}),
	"process":               query("process", "lines of the processes of this name", openapi.Schema{Type: "string"}),
	"order":                 query("order", "desc has the newest first, asc the oldest", Words("desc", "asc")),
	"region":                query("region", "those of one region", openapi.Schema{Type: "string"}),
	"actor":                 query("actor", "lines of one user or service account, by its sub", openapi.Schema{Type: "string"}),
	"action":                query("action", "lines of one action, such as sandboxes.create", openapi.Schema{Type: "string"}),
	"object":                query("object", "lines about one object, by its name", openapi.Schema{Type: "string"}),
	"source":                query("source", "lines of requests from one address", openapi.Schema{Type: "string"}),
	"outcome":               query("outcome", "lines with one outcome", Words(doze.AuditBegun, doze.AuditDone, doze.AuditFailed, doze.AuditDenied)),
	flags[OfPlatform]:       query(flags[OfPlatform], "lines of no workspace, such as failed logins; for operators", boolean),
	"workspace":             query("workspace", "the workspace to act in", openapi.Schema{Type: "string"}),

	"x-blaxel-workspace": {Name: "x-blaxel-workspace", In: "header", Description: "the same", Schema: &openapi.Schema{Type: "string"}},
	"blaxel-version": {
		Name: "blaxel-version", In: "header", Description: "the version of this interface: in the older one lists are bare arrays",
		Schema: new(WordsOr(bareLists, bareLists, bareLists+".preview", pagedLists, pagedLists+".preview")),
	},
}

// Forms that members of many types have.
var (
	// Name is the name of a resource.
	Name = openapi.Schema{MaxLength: doze.NameMax, Pattern: doze.NamePattern}
	// Span is what doze.ParseDuration reads.
	Span = openapi.Schema{Pattern: "^([0-9]+[smhdw])?$", Description: "a duration such as 30s, 15m, 24h, 7d or 2w"}
	// Instant is a moment as text.
	Instant = openapi.Schema{Type: "string", Description: "RFC 3339, or a date alone"}
	// Port is one of a sandbox.
	Port = Between(1, 1<<16-1)
	// Labels are those of a resource.
	Labels = openapi.Schema{MaxProperties: doze.LabelsMax}

	boolean = openapi.Schema{Type: "boolean"}
)

func query(name, about string, is openapi.Schema) openapi.Parameter {
	return openapi.Parameter{Name: name, In: "query", Description: about, Schema: &is}
}

// Words is a member that is one of a few words.
func Words(all ...string) openapi.Schema { return openapi.Schema{Type: "string", Enum: all} }

// WordsOr is Words with a default.
func WordsOr(otherwise string, all ...string) openapi.Schema {
	return openapi.Schema{Type: "string", Enum: all, Default: otherwise}
}

// Between is a number with bounds.
func Between(least, most int) openapi.Schema {
	return openapi.Schema{Minimum: &least, Maximum: &most}
}

// Letters is a text of bounded length.
func Letters(most int) openapi.Schema { return openapi.Schema{MaxLength: most} }

// Text is a member that needs a word about itself.
func Text(about string) openapi.Schema { return openapi.Schema{Description: about} }

// schemas makes the schemas of what goes over the wire, with what all sections say.
func (s *Server) schemas() *openapi.Schemas {
	all := &openapi.Schemas{
		Names: map[reflect.Type]string{}, Types: map[reflect.Type]*openapi.Schema{}, Members: map[string]openapi.Schema{}, Needs: map[string][]string{},
	}
	for _, section := range s.sections {
		maps.Copy(all.Names, section.Schemas.Names)
		maps.Copy(all.Types, section.Schemas.Types)
		maps.Copy(all.Members, section.Schemas.Members)
		maps.Copy(all.Needs, section.Schemas.Needs)
		all.Unset = append(all.Unset, section.Schemas.Unset...)
	}
	return all
}
