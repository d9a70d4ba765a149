package file

import (
	"io/fs"
	"net/http"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/text"
)

// besideMax bounds a body without its content, which is held in memory.
const besideMax = 64 << 10

// Write is the JSON body of a write.
type Write struct {
	Content     string `json:"content"`
	IsDirectory bool   `json:"isDirectory"`
	Permissions string `json:"permissions"`
}

// Mode returns the permissions of what is made with a content, or without. It
// adds what is wrong.
func (in Write) Mode(content bool, p *doze.Problems) fs.FileMode {
	without := owner.FileMode
	if in.IsDirectory {
		without = owner.DirMode
	}
	if in.IsDirectory && content {
		p.Add("content", "is for files; leave out content, or isDirectory")
	}
	perm, err := owner.ParseMode(in.Permissions, without)
	if err != nil {
		*p = append(*p, doze.Public(err).Message)
	}
	return perm
}

// contentBody is the body of a write: Read returns what its member content says.
// After the end, asked and perm are what else is in it.
type contentBody struct {
	text.Body
	asked Write // without its content
	perm  fs.FileMode
	seen  bool // the content has begun
}

// contentOf begins to read the body of a write. It is TooLarge if its sender says so.
func contentOf(w http.ResponseWriter, r *http.Request) (*contentBody, error) {
	c := newContent()
	return c, c.Open(w, r)
}

func newContent() *contentBody {
	c := &contentBody{Body: text.Body{At: []string{"content"}, Most: besideMax}}
	c.Begin, c.Finish = c.once, c.understand
	return c
}

// once is called when the content begins.
func (c *contentBody) once(string, int64) error {
	if c.seen {
		return doze.Errorf(doze.Invalid, "the body has content twice; send it once")
	}
	c.seen = true
	return nil
}

// understand reads what is beside the content.
func (c *contentBody) understand(beside []byte) (err error) {
	var p doze.Problems
	if c.asked, p, err = body.Unchecked[Write](beside); err == nil {
		c.perm = c.asked.Mode(c.Size() > 0, &p)
		err = p.Err()
	}
	return err
}
