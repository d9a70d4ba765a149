package mistake_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// TestAllMistakes: an answer names every mistake of a request, and none that is
// not one.
func TestAllMistakes(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	id := agenttest.Get[map[string]string](t, s, "POST", "/filesystem-multipart/initiate/x", "")["uploadId"]
	long := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"write": {"PUT", "/filesystem/x", `{"permissions":"zz","isDirectory":5}`, 400, `isDirectory must be true or false, not number; the permissions "zz" are not octal like 0644`},
		"write, directory": {
			"PUT", "/filesystem/x", `{"content":"x","permissions":"zz","isDirectory":true}`, 400,
			`content is for files; leave out content, or isDirectory; the permissions "zz" are not octal like 0644`,
		},
		"list":          {"PUT", "/filesystem/x", `[1]`, 400, "the body must be a JSON object, not array"},
		"find":          {"GET", "/filesystem-find/?maxResults=x&type=zz&patterns=[", "", 400, `maxResults must be a number from 0, which means all, to 1000; patterns has "[", which is not a glob like *.go; type must be file or directory`},
		"search":        {"GET", "/filesystem-search/?maxResults=x&query=" + long, "", 400, "maxResults must be a number from 0, which means all, to 1000; query has 5000 bytes; at most 4096 are allowed"},
		"grep":          {"GET", "/filesystem-content-search/?maxResults=-1&contextLines=x&filePattern=[", "", 400, `maxResults must be a number from 0, which means all, to 1000; filePattern has "[", which is not a glob like *.go; contextLines must be a number from 0 to 50; query is required`},
		"process":       {"POST", "/process", `{"command":5,"env":{"A":1,"":"x"},"waitForPorts":[1,"x",0]}`, 400, "command must be a string, not number; env.A must be a string, not number; waitForPorts[1] must be a whole number, not string"},
		"export":        {"POST", "/archive/export", `{"url":"x","multipart":{"partSize":0,"partUrls":[]},"stopTimeoutSeconds":-5,"imageMountPoint":"rel"}`, 400, `multipart.partSize must be at least 1, in bytes; multipart.partUrls has 0 addresses; it must have 1 to 10000; multipart.completeUrl is required; stopTimeoutSeconds must be 0 to 600; imageMountPoint is "rel", which is not an absolute path of a directory`},
		"export, types": {"POST", "/archive/export", `{"multipart":{"partSize":"x","partUrls":["http://h",5]},"dryRun":1}`, 400, "dryRun must be true or false, not number; multipart.partSize must be a whole number, not string; multipart.partUrls[1] must be a string, not number"},
		"export, url":   {"POST", "/archive/export", `{"url":"file:///etc/passwd","stopTimeoutSeconds":-5,"imageMountPoint":"/"}`, 400, "url must be an address that begins with http:// or https://; stopTimeoutSeconds must be 0 to 600"},
		"export, urls":  {"POST", "/archive/export", `{"multipart":{"partSize":1,"partUrls":["http://h","h","h"],"completeUrl":"h"},"imageMountPoint":"/"}`, 400, "multipart.partUrls[1] must be an address that begins with http:// or https://; multipart.completeUrl must"},
		"complete":      {"POST", "/filesystem-multipart/" + id + "/complete", `{"parts":[{"partNumber":3},{"partNumber":1},{"partNumber":1}]}`, 500, "part 1 is missing; upload it first; part 1 is listed twice; part 3 is missing; upload it first"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Fails(t, test.status, test.want, test.method, test.path, test.body)
		})
	}
	for what, test := range map[string]struct{ path, body, want string }{
		"a callback":    {"/network/process/1/monitor", `{"callback":5}`, "callback must be a string, not number"},
		"no callback":   {"/network/process/1/monitor", `{}`, "callback is required"},
		"a url":         {"/archive/export", `{"url":5,"imageMountPoint":"/"}`, "url must be a string, not number"},
		"part urls":     {"/archive/export", `{"multipart":{"partSize":1,"partUrls":[5,"http://h"],"completeUrl":[]},"imageMountPoint":"/"}`, "multipart.completeUrl must be a string, not array; multipart.partUrls[0] must be a string, not number"},
		"a mount point": {"/archive/export", `{"url":"http://h","imageMountPoint":5}`, "imageMountPoint must be a string, not number"},
		"none":          {"/archive/export", `{"url":"http://h"}`, "imageMountPoint is required"},
	} {
		if status, body := s.Call(t, "POST", test.path, test.body); status != 400 || body != `{"error":"`+test.want+`"}`+"\n" {
			t.Errorf("%s: status %d, %s", what, status, body)
		}
	}
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		var files []string
		for i := range 20_000 {
			files = append(files, fmt.Sprintf(`"%d":%d`, i, i))
		}
		status, body := s.Call(t, "PUT", "/filesystem/tree/x", `{"files":{`+strings.Join(files, ",")+`}}`)
		if n := strings.Count(body, "must be a string"); status != 400 || n != 32 {
			t.Errorf("status %d with %d mistakes", status, n)
		}
	})
}
