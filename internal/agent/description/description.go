// Package description describes the API inside a sandbox in the form of OpenAPI
// 3.1. No agent has this package: it has the text that is made with it, see
// package manual.
package description

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent"
	"github.com/dozehq/doze/internal/openapi"
)

// version is that of the interface. It grows with a change that old clients notice.
const version = "0.0.1"

const about = `The API inside a sandbox of Doze: files, processes, ports, terminals, and tools for language models.

It is below the address of each sandbox, which is metadata.url of its record. A request wakes a sandbox that sleeps.
A credential is an API key or an access token with the scope "sandboxes:control".

A {path} is absolute, or relative to the working directory. Its slashes may stay as they are: /filesystem/srv/a.txt is srv/a.txt below
the working directory, and both /filesystem//srv/a.txt and /filesystem/%2Fsrv%2Fa.txt are /srv/a.txt.
Unknown members of a body are ignored.`

// Scope is what a credential needs for any of the calls.
const Scope = "sandboxes:control"

// Describe describes every route. It panics for a route that the table of
// operations does not have, and for a row of that table without a route.
func Describe() openapi.Document {
	schemas := schemas()
	d := openapi.Document{
		OpenAPI: openapi.Version,
		Info:    openapi.Info{Title: "Doze sandbox", Version: version, Description: about},
		Servers: []openapi.Server{{URL: "{sandbox}", Variables: map[string]openapi.Variable{
			"sandbox": {Default: "http://127.0.0.1:7080/run/main/sandboxes/web", Description: "metadata.url of the record of the sandbox"},
		}}},
		Tags:  tags,
		Paths: map[string]openapi.Path{},
		Components: openapi.Components{
			Parameters: map[string]openapi.Parameter{}, Responses: map[string]openapi.Response{}, SecuritySchemes: map[string]openapi.Scheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "an API key or an access token"},
				"blaxel": {Type: "apiKey", In: "header", Name: "x-blaxel-authorization", Description: `the same, as "Bearer" and the credential; it is read first`},
			},
		},
	}
	for _, also := range besides {
		schemas.Of(also, openapi.Answer)
	}
	used := map[string]bool{}
	for _, rt := range slices.Concat(agent.Routes(), edges()) {
		key := rt.Method + " " + rt.Pattern
		op, known := operations[key]
		if !known {
			panic("the route " + key + " has no row in the table of operations")
		}
		used[key] = true
		pattern := strings.ReplaceAll(rt.Pattern, "...}", "}")
		if d.Paths[pattern] == nil {
			d.Paths[pattern] = openapi.Path{}
		}
		d.Paths[pattern][strings.ToLower(rt.Method)] = op.describe(rt, pattern, schemas)
	}
	for key := range operations {
		if !used[key] {
			panic("the table of operations has " + key + ", which is no route")
		}
	}
	d.Components.Responses[anyFailure] = openapi.Response{
		Description: "an error: the agent sends a text, and the platform an object",
		Content:     media(jsonType, schemas.Of(reflect.TypeFor[sandboxError](), openapi.Answer), ""),
	}
	if stale := schemas.Stale(); len(stale) > 0 {
		panic("no type has " + strings.Join(stale, ", "))
	}
	d.Components.Schemas = schemas.Named()
	return d
}

// edges are the routes that the platform answers by itself, below the address of
// a sandbox.
func edges() []agent.Route {
	all := []agent.Route{
		{Method: "GET", Pattern: "/drives/mount", Out: reflect.TypeFor[mounts]()},
		{Method: "POST", Pattern: "/drives/mount", In: reflect.TypeFor[doze.DriveMount](), Out: reflect.TypeFor[mounted]()},
		{Method: "DELETE", Pattern: "/drives/mount/{mountPath...}", Out: reflect.TypeFor[unmounted]()},
		{Method: "GET", Pattern: "/tcp/{port}"},
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		all = append(all, agent.Route{Method: method, Pattern: "/port/{port}/{path...}"})
	}
	return all
}

const (
	jsonType  = "application/json"
	linesType = "application/x-ndjson"
	textType  = "text/plain"
	pageType  = "text/html"
	bytesType = "application/octet-stream"
	formType  = "multipart/form-data"

	// anyFailure is the response for all errors. Its name is apart from those of the
	// control API.
	anyFailure = "sandbox_error"
)

// operation is what a route does, as far as its types do not say it.
type operation struct {
	id      string
	tag     string
	summary string
	about   string
	values  []openapi.Parameter // of the query and the headers
	// in are the forms of the body; without, it is the JSON of the route's type.
	in       map[string]openapi.Media
	asks     string // an example of a JSON body
	optional bool   // the body may be absent
	// out are the answers besides the JSON of the route's type, by status.
	out     map[int]openapi.Response
	answers string // an example of the JSON answer
	no      bool   // it has no such answer
	fails   []int  // errors that say something about this call
}

// describe describes a route.
func (op operation) describe(rt agent.Route, pattern string, schemas *openapi.Schemas) *openapi.Operation {
	scopes := []string{Scope}
	o := &openapi.Operation{
		ID: op.id, Tags: []string{op.tag}, Summary: op.summary, Description: op.about,
		Security:   []map[string][]string{{"bearer": scopes}, {"blaxel": scopes}},
		Parameters: append(inPath(pattern), op.values...),
		Responses:  map[string]openapi.Response{"default": failure()},
	}
	content := map[string]openapi.Media{}
	if rt.In != nil {
		content = media(jsonType, schemas.Of(rt.In, openapi.Request), op.asks)
	}
	maps.Copy(content, op.in)
	if len(content) > 0 {
		o.Body = &openapi.Body{Required: !op.optional, Content: content}
	}
	for status, response := range op.out {
		o.Responses[strconv.Itoa(status)] = response
	}
	if rt.Out != nil && !op.no {
		ok := o.Responses["200"]
		ok.Description = cmp.Or(ok.Description, "done")
		ok.Content = maps.Clone(ok.Content) // the table stays as it is
		if ok.Content == nil {
			ok.Content = map[string]openapi.Media{}
		}
		out := schemas.Of(rt.Out, openapi.Answer)
		if also, two := ok.Content[jsonType]; two {
			out = &openapi.Schema{OneOf: []*openapi.Schema{out, also.Schema}}
		}
		ok.Content[jsonType] = media(jsonType, out, op.answers)[jsonType]
		o.Responses["200"] = ok
	}
	for _, status := range append([]int{401, 403}, op.fails...) {
		if _, said := op.out[status]; !said {
			o.Responses[strconv.Itoa(status)] = failure()
		}
	}
	return o
}

func failure() openapi.Response {
	return openapi.Response{Ref: "#/components/responses/" + anyFailure}
}

// inPath are the parameters of a path.
func inPath(pattern string) (all []openapi.Parameter) {
	for segment := range strings.SplitSeq(pattern, "/") {
		name, ok := strings.CutPrefix(segment, "{")
		if !ok {
			continue
		}
		p := variables[strings.TrimSuffix(name, "}")]
		p.Name, p.In, p.Required = strings.TrimSuffix(name, "}"), "path", true
		p.Schema = cmp.Or(p.Schema, text)
		all = append(all, p)
	}
	return all
}

// media is a body of one form. The example is JSON, and may be empty.
func media(form string, is *openapi.Schema, example string) map[string]openapi.Media {
	m := openapi.Media{Schema: is}
	switch {
	case example == "":
	case form != jsonType:
		m.Example = example
	default:
		if err := json.Unmarshal([]byte(example), &m.Example); err != nil {
			panic(fmt.Sprintf("the example %s is not JSON: %v", example, err))
		}
	}
	return map[string]openapi.Media{form: m}
}
