package intercept

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"doze"
)

// bodyMax bounds a JSON body that gets members, which is held in memory.
const bodyMax = 1 << 20

// prepareBody adds members to a body that is JSON, and sees to it that it goes
// out without references. It returns the members that it added.
func prepareBody(r *http.Request, members map[string]string) (added []string, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if len(members) > 0 && isJSON(r.Header.Get("Content-Type")) {
		return injectBody(r, members)
	}
	r.Body = &unresolved{ReadCloser: r.Body}
	return nil, nil
}

// inForms is a reference as most clients write it into a form.
const inForms = "%7B%7BSECRET%3A"

// inBodies are references; inForms is the longest.
var inBodies = []string{doze.SecretReference, inForms, "%7b%7bSECRET%3a"}

var errReference = doze.Errorf(doze.Invalid, "references to secrets are resolved in routing rules only: put the header or the member into the rule, and leave it out here")

// unresolved is a body that is not held in memory. A reference in it, as it is or as
// a form has it, is an error: the request is given up before its end.
type unresolved struct {
	io.ReadCloser
	tail []byte // of what was read: a reference may begin in it
}

func (u *unresolved) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	seen := append(u.tail, p[:n]...)
	for _, r := range inBodies {
		if bytes.Contains(seen, []byte(r)) {
			return 0, errReference
		}
	}
	u.tail = bytes.Clone(seen[max(0, len(seen)-len(inForms)+1):])
	return n, err
}

// injectBody adds members to the JSON object that r carries; those that it has
// stay. A body that is no JSON, or no object, is left as it is. One that says it
// is JSON and cannot be read is an error: it would go out without the members.
func injectBody(r *http.Request, members map[string]string) (added []string, err error) {
	raw, err := readBody(r.Body)
	if err != nil {
		return nil, err
	}
	plain, err := decodeBody(raw, r.Header.Values("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	if bytes.Contains(plain, []byte(doze.SecretReference)) {
		return nil, errReference
	}
	whole, added, err := addMembers(plain, members)
	if err != nil {
		return nil, err
	}
	if len(added) > 0 {
		raw = whole
		r.Header.Del("Content-Encoding")
	}
	r.Header.Del("Expect") // all of it is here
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	r.TransferEncoding = nil
	return added, nil
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"))
}

// readBody reads at most bodyMax bytes.
func readBody(body io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(body, bodyMax+1))
	if err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the body of the request ended early, or is not encoded as it says")
	}
	if len(b) > bodyMax {
		return nil, doze.Errorf(doze.TooLarge, "a routing rule adds to the JSON of this request, which may have %d bytes: send less, or take the body out of the rule", bodyMax)
	}
	return b, nil
}

// decodeBody undoes the encodings of a body.
func decodeBody(b []byte, encodings []string) ([]byte, error) {
	names := codingsOf(encodings)
	r, ok := undo(bytes.NewReader(b), names)
	if !ok {
		return nil, doze.Errorf(doze.Invalid, "a routing rule adds to the JSON of this request, which cannot be read in the encoding %.40q: send it plain, or with gzip", strings.Join(names, ", "))
	}
	return readBody(r)
}

// addMembers puts members in front of those of a JSON object. The rest of it
// stays byte for byte. What is no object is returned as it is.
func addMembers(b []byte, members map[string]string) (_ []byte, added []string, err error) {
	b = bytes.TrimLeft(b, " \t\r\n")
	if !json.Valid(b) {
		return nil, nil, doze.Errorf(doze.Invalid, "a routing rule adds to the JSON of this request, which is none: correct the body, or its content type")
	}
	if b[0] != '{' {
		return b, nil, nil
	}
	var has map[string]json.RawMessage
	if err := json.Unmarshal(b, &has); err != nil {
		return nil, nil, doze.Wrap(err, doze.Invalid, "the JSON of this request cannot be read")
	}
	var front []byte
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if _, ok := has[name]; ok {
			continue
		}
		for i, s := range []string{name, members[name]} {
			text, err := json.Marshal(s)
			if err != nil {
				return nil, nil, err
			}
			front = append(append(front, text...), ":,"[i])
		}
		added = append(added, name)
	}
	if len(added) == 0 {
		return b, nil, nil
	}
	if len(has) == 0 {
		front = front[:len(front)-1] // no comma before the end
	}
	return slices.Concat(b[:1], front, b[1:]), added, nil
}
