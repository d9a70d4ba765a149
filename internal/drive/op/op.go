// Package op is what the agent of a sandbox asks its host about the files of a
// drive, over a connection that the host made. A call is a POST whose query says
// what to do and whose body is what to write; its answer is JSON, or what was
// read. Every call may be repeated after a connection was lost: see
// [Call.Again].
package op

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
)

const (
	// DataMax is what one call reads or writes: the pages of one request of the
	// engine. Larger ones would only take memory.
	DataMax = 512 << 10
	// AnswerMax bounds an answer in JSON: a directory with its names.
	AnswerMax = 64 << 20
	// errnoHeader of an answer says that nothing was done, and why.
	errnoHeader = "Doze-Errno"
	// callKey is the parameter of the query that is the call.
	callKey = "call"
)

// A Name is what to do.
type Name string

// What can be asked.
const (
	Stat     Name = "stat"     // Path, or the file of Handle: a Node
	List     Name = "list"     // Path: Nodes
	Open     Name = "open"     // Path for reading, or for writing as Handle: a Node
	Read     Name = "read"     // Size bytes at Offset of Handle if it is open for writing, else of Path
	Write    Name = "write"    // the body at Offset of Handle
	Flush    Name = "flush"    // what was written by Handle goes to the bucket
	Release  Name = "release"  // Handle is not used any more
	Truncate Name = "truncate" // Path, or the file of Handle, to Size: a Node
	Mkdir    Name = "mkdir"    // Path: a Node
	Unlink   Name = "unlink"   // Path, a file
	Rmdir    Name = "rmdir"    // Path, an empty directory
	Rename   Name = "rename"   // Path to To
)

// Call is one question. Paths have no slash at either end; the empty one is the
// root.
type Call struct {
	Op     Name   `json:"op"`
	Path   string `json:"path,omitempty"`
	To     string `json:"to,omitempty"`
	Handle uint64 `json:"handle,omitempty"` // the asker chooses it, never twice; 0 is none
	Offset int64  `json:"offset,omitempty"`
	Size   int64  `json:"size,omitempty"`

	Write     bool `json:"write,omitempty"`     // of Open: for writing too
	Create    bool `json:"create,omitempty"`    // of Open: make it if it is not there
	Exclusive bool `json:"exclusive,omitempty"` // of Open: and only then
	Truncate  bool `json:"truncate,omitempty"`  // of Open: with nothing in it

	// Again says that the same call was sent before, and nobody knows what came
	// of it: what it finds done is its own work.
	Again bool `json:"again,omitempty"`
}

// Node is a file or a directory.
type Node struct {
	Name     string `json:"name,omitempty"` // in a list
	Dir      bool   `json:"dir,omitempty"`
	Size     int64  `json:"size,omitempty"`
	Modified int64  `json:"modified,omitempty"` // nanoseconds since 1970
}

// Answer is what comes of a call that reads no bytes.
type Answer struct {
	Node  Node   `json:"node"`
	Nodes []Node `json:"nodes,omitempty"`
}

// Target is the path and the query of a call.
func (c Call) Target() (string, error) {
	raw, err := json.Marshal(c)
	return "/?" + url.Values{callKey: {string(raw)}}.Encode(), err
}

// Parse reads the call of a request. What is no call is EINVAL.
func Parse(r *http.Request) (c Call, err error) {
	if json.Unmarshal([]byte(r.URL.Query().Get(callKey)), &c) != nil || c.Offset < 0 || c.Size < 0 {
		return c, syscall.EINVAL
	}
	return c, nil
}

// Refuse answers a call that did nothing.
func Refuse(w http.ResponseWriter, errno syscall.Errno) {
	w.Header().Set(errnoHeader, strconv.Itoa(int(errno)))
	w.WriteHeader(http.StatusOK)
}

// Refusal is why a call did nothing; nil if it did something.
func Refusal(resp *http.Response) error {
	text := resp.Header.Get(errnoHeader)
	if text == "" && resp.StatusCode == http.StatusOK {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 12)
	if err != nil || n == 0 {
		return syscall.EIO
	}
	return syscall.Errno(n)
}

// ReadBody reads a body to its end, which the caller bounds. Its length is what the other
// side says that it is, or negative. Where that is right, no byte is moved again.
func ReadBody(r io.Reader, length int64) ([]byte, error) {
	body := bytes.NewBuffer(make([]byte, 0, min(max(length, 0), DataMax)+bytes.MinRead))
	_, err := body.ReadFrom(r)
	return body.Bytes(), err
}
