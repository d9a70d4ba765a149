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

// prepareBody adds members to a body, and resolves references in it. It returns the
// members that it added. Whether a body is JSON is decided by its bytes: the sandbox
// chooses the Content-Type, and could keep the members out with it. A request without
// a body has nothing to add to.
func prepareBody(r *http.Request, members map[string]string, refs references) (added []string, err error) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return nil, nil
	case len(members) > 0, len(refs) > 0 && r.ContentLength > 0 && r.ContentLength <= bodyMax:
		return changeBody(r, members, refs)
	default: // it may be a stream that waits for answers
		return nil, nil
	}
}

// changeBody adds members to the JSON object that r carries; those that it has
// stay. Any other body is an error if there are members: it would go out without them.
func changeBody(r *http.Request, members map[string]string, refs references) (added []string, err error) {
	came, err := readBody(r.Body)
	if err != nil {
		return nil, err
	}
	raw := came
	if len(came) > 0 {
		if raw, added, err = change(came, r.Header, members, refs); err != nil {
			return nil, err
		}
	}
	if !bytes.Equal(raw, came) {
		r.Header.Del("Content-Encoding")
	}
	r.Header.Del("Expect") // all of it is here
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	r.TransferEncoding = nil
	return added, nil
}

// change returns a body as it is sent, without its encodings; or as it came, if
// nothing is to change.
func change(came []byte, h http.Header, members map[string]string, refs references) (_ []byte, added []string, err error) {
	plain, unreadable := decodeBody(came, h.Values("Content-Encoding"))
	switch {
	case unreadable != nil && len(members) > 0:
		return nil, nil, unreadable
	case unreadable != nil:
		return came, nil, nil //nolint:nilerr // it has no references for us
	}
	whole := refs.body(plain, h.Get("Content-Type"))
	if len(members) > 0 {
		var with []byte
		if with, added, err = addMembers(whole, members); err != nil {
			return nil, nil, err
		}
		if len(added) > 0 {
			whole = with
		}
	}
	if bytes.Equal(whole, plain) {
		return came, nil, nil
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
