package intercept

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
)

// bodyMax bounds a JSON body that gets members, which is held in memory.
const bodyMax = 1 << 20

// prepareBody adds members to a body, and sees to it that it goes out without
// references. It returns the members that it added. Whether a body is JSON is
// decided by its bytes: the sandbox chooses the Content-Type, and could keep the
// members out with it. A request without a body has nothing to add to.
func prepareBody(r *http.Request, members map[string]string) (added []string, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if len(members) > 0 {
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
// stay. Any other body is an error: it would go out without the members.
func injectBody(r *http.Request, members map[string]string) (added []string, err error) {
	raw, err := readBody(r.Body)
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		if raw, added, err = inject(raw, r.Header, members); err != nil {
			return nil, err
		}
	}
	if len(added) > 0 {
		r.Header.Del("Content-Encoding")
	}
	r.Header.Del("Expect") // all of it is here
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	r.TransferEncoding = nil
	return added, nil
}

// inject returns a body with members, without its encodings; or as it came, if it
// has them all.
func inject(raw []byte, h http.Header, members map[string]string) (_ []byte, added []string, err error) {
	plain, err := decodeBody(raw, h.Values("Content-Encoding"))
	if err != nil {
		return nil, nil, err
	}
	if bytes.Contains(plain, []byte(doze.SecretReference)) {
		return nil, nil, errReference
	}
	whole, added, err := addMembers(plain, members)
	if err != nil || len(added) == 0 {
		return raw, nil, err
	}
	return whole, added, nil
}

// readBody reads at most bodyMax bytes.
func readBody(body io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(body, bodyMax+1))
	if err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the body of the request ended early, or is not encoded as it says")
	}
	if len(b) > bodyMax {
		return nil, doze.Errorf(doze.TooLarge, "a routing rule adds members to the JSON of this request, which may have %d bytes: send less, or take the body out of the rule", bodyMax)
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
// stays byte for byte.
func addMembers(b []byte, members map[string]string) (_ []byte, added []string, err error) {
	b = bytes.TrimLeft(b, " \t\r\n")
	if !json.Valid(b) || b[0] != '{' {
		return nil, nil, doze.Errorf(doze.Invalid, "a routing rule adds members to the body of this request, which must be a JSON object in UTF-8: send one, or take the body out of the rule")
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
