// Package python writes the modules of the Python client that follow from the
// descriptions of the APIs. It makes the blocking half of the client of the half for
// asyncio.
package python

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/dozehq/doze/internal/openapi"
)

//go:generate go test . -update

// header is at the top of what is written.
const header = "# Written by internal/python. Do not change it: run make gen.\n"

// API is one description, and what the client calls it.
type API struct {
	openapi.Document

	Class string // of the operations
	About string // what they are
}

// Models returns the module of all schemas of APIs. A schema of one name is the same in all.
func Models(all ...API) (string, error) {
	schemas := map[string]*openapi.Schema{}
	for _, api := range all {
		maps.Copy(schemas, api.Components.Schemas)
	}
	var b strings.Builder
	b.WriteString(header + `"""What the APIs take and answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
`)
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		if err := class(&b, name, schemas[name]); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// class writes a schema as a class.
func class(b *strings.Builder, name string, is *openapi.Schema) error {
	if is.Type != "object" {
		return fmt.Errorf("the schema %s is no object: it cannot be a class", name)
	}
	fmt.Fprintf(b, "\n\n@dataclass(kw_only=True)\nclass %s:\n", name)
	if len(is.Properties) == 0 {
		b.WriteString("    pass\n")
	}
	for _, member := range slices.Sorted(maps.Keys(is.Properties)) {
		property := is.Properties[member]
		hint, err := hintOf(property, "")
		if err != nil {
			return fmt.Errorf("%s.%s: %w", name, member, err)
		}
		attribute := snake(member)
		var options []string
		if !slices.Contains(is.Required, member) {
			hint = optional(hint)
			options = append(options, "default=None")
		}
		if attribute != member {
			options = append(options, fmt.Sprintf("metadata={%q: %q}", "json", member))
		}
		if property.Description != "" {
			fmt.Fprintf(b, "    #: %s\n", property.Description)
		}
		fmt.Fprintf(b, "    %s: %s", attribute, hint)
		if len(options) > 0 {
			fmt.Fprintf(b, " = field(%s)", strings.Join(options, ", "))
		}
		b.WriteByte('\n')
	}
	return nil
}

// reference is how a schema refers to another one.
const reference = "#/components/schemas/"

// hintOf returns the type of a schema. Classes are in the module in.
func hintOf(is *openapi.Schema, in string) (string, error) {
	switch {
	case is == nil:
		return "Any", nil
	case is.Ref != "":
		return in + strings.TrimPrefix(is.Ref, reference), nil
	case len(is.OneOf) > 0:
		return union(is.OneOf, in)
	case len(is.Enum) > 0:
		words := make([]string, len(is.Enum))
		for i, word := range is.Enum {
			words[i] = fmt.Sprintf("%q", word)
		}
		return "Literal[" + strings.Join(words, ", ") + "]", nil
	}
	switch is.Type {
	case "string":
		return "str", nil
	case "integer":
		return "int", nil
	case "number":
		return "float", nil
	case "boolean":
		return "bool", nil
	case "null":
		return "None", nil
	case "":
		return "Any", nil
	case "array":
		element, err := hintOf(is.Items, in)
		return "list[" + element + "]", err
	case "object":
		element, err := hintOf(is.Values, in)
		return "dict[str, " + element + "]", err
	}
	return "", fmt.Errorf("the type %q has no form in Python", is.Type)
}

func union(all []*openapi.Schema, in string) (string, error) {
	hints := make([]string, 0, len(all))
	for _, is := range all {
		hint, err := hintOf(is, in)
		if err != nil {
			return "", err
		}
		hints = append(hints, hint)
	}
	return strings.Join(hints, " | "), nil
}

func optional(hint string) string {
	if hint == "Any" || slices.Contains(strings.Split(hint, " | "), "None") {
		return hint
	}
	return hint + " | None"
}

// humps are where a word begins in a name.
var humps = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// keywords are names that Python does not allow, or that a class here hides.
var keywords = []string{"from", "in", "global", "class", "import", "async", "await", "None", "pass", "def", "is", "not", "or", "and", "lambda"}

// snake returns a name as Python writes it.
func snake(name string) string {
	name = strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			return c
		}
		return '_'
	}, name)
	name = strings.ToLower(humps.ReplaceAllString(name, "${1}${3}_${2}${4}"))
	if slices.Contains(keywords, name) {
		name += "_"
	}
	return name
}

// Operations returns the module of the calls of APIs, for asyncio.
func Operations(all ...API) (string, error) {
	var b strings.Builder
	b.WriteString(header + `"""Every call of the APIs."""

from __future__ import annotations

from typing import Any, AsyncIterator, Literal, Mapping

from .. import _codec, models
from .._codec import Page
from .transport import AsyncTransport
`)
	for _, api := range all {
		fmt.Fprintf(&b, "\n\nclass %s:\n    %q\n\n", api.Class, api.About)
		b.WriteString("    def __init__(self, transport: AsyncTransport, base: str) -> None:\n        self._transport = transport\n        self._base = base\n")
		for _, c := range calls(api) {
			if err := c.write(&b); err != nil {
				return "", fmt.Errorf("%s: %w", c.ID, err)
			}
		}
	}
	return b.String(), nil
}

// call is one operation.
type call struct {
	*openapi.Operation

	api          API
	method, path string
}

// calls returns the operations of an API in the order of their names. Those that become
// a WebSocket are left out.
func calls(api API) (all []call) {
	for path, operations := range api.Paths {
		for method, o := range operations {
			if _, socket := o.Responses["101"]; !socket {
				all = append(all, call{o, api, strings.ToUpper(method), path})
			}
		}
	}
	slices.SortFunc(all, func(a, b call) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// ours are parameters that the client sets by itself.
var ours = []string{"workspace", "x-blaxel-workspace", "blaxel-version", "Range"}

const (
	jsonType  = "application/json"
	linesType = "application/x-ndjson"
	eventType = "text/event-stream"
	textType  = "text/plain"
)

// write writes the method of a call.
func (c call) write(b *strings.Builder) error {
	var arguments, named, parameters []string
	target := c.path
	for _, p := range c.Parameters {
		p := c.resolve(p)
		if p.In != "path" && slices.Contains(ours, p.Name) {
			continue
		}
		hint, err := hintOf(p.Schema, "models.")
		if err != nil {
			return err
		}
		name := snake(p.Name)
		switch {
		case p.In == "path":
			arguments = append(arguments, name+": "+hint)
			form := "segment"
			if p.Name == "path" {
				form = "file_path"
			}
			target = strings.Replace(target, "{"+p.Name+"}", "{_codec."+form+"("+name+")}", 1)
			continue
		case p.Required:
			named = append(named, name+": "+hint)
		default:
			named = append(named, name+": "+optional(hint)+" = None")
		}
		parameters = append(parameters, fmt.Sprintf("%q: %s", p.Name, name))
	}
	body, sent, err := c.body()
	if err != nil {
		return err
	}
	if body != "" {
		arguments = append(arguments, body)
	}
	out, decode, err := c.answer()
	if err != nil {
		return err
	}
	lines := out == "AsyncIterator[str]"
	if !lines {
		named = append(named, "timeout: float | None = None")
	}
	all := append([]string{"self"}, arguments...)
	if len(named) > 0 {
		all = append(append(all, "*"), named...)
	}
	from := []string{fmt.Sprintf("%q", c.method), `f"{self._base}` + target + `"`}
	if sent != "" {
		from = append(from, sent)
	}
	if len(parameters) > 0 {
		from = append(from, "params=_codec.query(**{"+strings.Join(parameters, ", ")+"})")
	}
	about := c.Summary + "."
	if c.Description != "" {
		about += " " + c.Description
	}
	about = strings.ReplaceAll(about, `\`, `\\`)
	if lines {
		fmt.Fprintf(b, "\n    def %s(%s) -> %s:\n        \"\"\"%s\"\"\"\n        return self._transport.lines(%s)\n",
			snake(c.ID), strings.Join(all, ", "), out, about, strings.Join(from, ", "))
		return nil
	}
	fmt.Fprintf(b, "\n    async def %s(%s) -> %s:\n        \"\"\"%s\"\"\"\n", snake(c.ID), strings.Join(all, ", "), out, about)
	if decode == "" { // bytes
		fmt.Fprintf(b, "        return (await self._transport.send(%s, timeout=timeout)).content\n", strings.Join(from, ", "))
		return nil
	}
	fmt.Fprintf(b, "        return await self._transport.call(%s, decode=%s, timeout=timeout)\n", strings.Join(from, ", "), decode)
	return nil
}

// resolve returns what a parameter refers to, or itself.
func (c call) resolve(p openapi.Parameter) openapi.Parameter {
	if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
		return c.api.Components.Parameters[name]
	}
	return p
}

// body returns the argument of the body and how it is sent. Both are empty without a body.
func (c call) body() (argument, sent string, err error) {
	if c.Body == nil {
		return "", "", nil
	}
	media, isJSON := c.Body.Content[jsonType]
	if !isJSON {
		return "content: bytes", "content=content", nil
	}
	hint := "Mapping[str, Any]"
	if media.Schema.Ref != "" {
		of, err := hintOf(media.Schema, "models.")
		if err != nil {
			return "", "", err
		}
		hint = of + " | " + hint
	}
	if !c.Body.Required && c.method != "POST" && c.method != "PUT" {
		hint += " | None"
	}
	return "body: " + hint, "body=body", nil
}

// answer returns the type of the answer, and what decodes it. It decodes nothing that is
// not JSON.
func (c call) answer() (hint, decode string, err error) {
	ok := c.Responses["200"]
	media, isJSON := ok.Content[jsonType]
	switch {
	case isJSON:
		decode, err := decoderOf(media.Schema)
		if err != nil {
			return "", "", err
		}
		hint, err := answerHint(media.Schema)
		return hint, decode, err
	case ok.Content[linesType].Schema != nil, ok.Content[eventType].Schema != nil, ok.Content[textType].Schema != nil:
		return "AsyncIterator[str]", "", nil
	case len(ok.Content) > 0:
		return "bytes", "", nil
	}
	return "None", "_codec.nothing", nil
}

// element returns the schema of the elements of a list that comes in pages, or nil.
func element(is *openapi.Schema) *openapi.Schema {
	if len(is.OneOf) == 2 && is.OneOf[0].Type == "array" && is.OneOf[1].Properties["meta"] != nil {
		return is.OneOf[0].Items
	}
	return nil
}

func answerHint(is *openapi.Schema) (string, error) {
	if of := element(is); of != nil {
		hint, err := hintOf(of, "models.")
		return "Page[" + hint + "]", err
	}
	return hintOf(is, "models.")
}

// decoderOf returns what makes a value of a schema out of JSON.
func decoderOf(is *openapi.Schema) (string, error) {
	if of := element(is); of != nil {
		inner, err := decoderOf(of)
		return "_codec.page(" + inner + ")", err
	}
	switch {
	case is == nil:
		return "_codec.anything", nil
	case len(is.OneOf) == 2:
		first, err := hintOf(is.OneOf[0], "models.")
		if err != nil {
			return "", err
		}
		second, err := hintOf(is.OneOf[1], "models.")
		return "_codec.either(" + first + ", " + second + ")", err
	case is.Ref != "":
		return "_codec.model(models." + strings.TrimPrefix(is.Ref, reference) + ")", nil
	case is.Type == "array":
		inner, err := decoderOf(is.Items)
		return "_codec.items(" + inner + ")", err
	case is.Type == "object" && is.Values != nil:
		inner, err := decoderOf(is.Values)
		return "_codec.mapping(" + inner + ")", err
	}
	return "_codec.anything", nil
}

// blocking are the words of the half for asyncio, and those of the other half.
var blocking = []struct {
	asynchronous *regexp.Regexp
	with         string
}{
	{regexp.MustCompile(`\basync (def|with|for) `), "$1 "},
	{regexp.MustCompile(`\bawait `), ""},
	{regexp.MustCompile(`\basynccontextmanager\b`), "contextmanager"},
	{regexp.MustCompile(`\basync_sleep\b`), "sync_sleep"},
	{regexp.MustCompile(`\b__a(enter|exit)__\b`), "__${1}__"},
	{regexp.MustCompile(`\ba(close|read|iter_lines)\(`), "$1("},
	{regexp.MustCompile(`\bAsync([A-Z]\w*)`), "$1"},
	{regexp.MustCompile(`for asyncio`), "that block"},
}

// Blocking returns the blocking form of a module for asyncio.
func Blocking(source string) string {
	for _, word := range blocking {
		source = word.asynchronous.ReplaceAllString(source, word.with)
	}
	return header + strings.TrimPrefix(source, header)
}
