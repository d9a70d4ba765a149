package description

import (
	"maps"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/openapi"
)

// tags are the groups of the calls.
var tags = []openapi.Tag{
	{Name: filesTag, Description: "read, write and delete files and trees"},
	{Name: uploadsTag, Description: "large files, in parts that may be sent again"},
	{Name: searchTag, Description: "find files and what is in them, and see changes"},
	{Name: processesTag, Description: "run commands, and read what they write"},
	{Name: networkTag, Description: "ports that processes serve"},
	{Name: terminalsTag, Description: "shells for people"},
	{Name: toolsTag, Description: "the same for language models"},
	{Name: mountsTag, Description: "drives in the file system of the sandbox"},
	{Name: archivesTag, Description: "what differs from the image, as one tar"},
	{Name: agentTag, Description: "the agent that serves this API"},
}

const (
	filesTag     = "files"
	uploadsTag   = "uploads"
	searchTag    = "search"
	processesTag = "processes"
	networkTag   = "network"
	terminalsTag = "terminals"
	toolsTag     = "tools"
	mountsTag    = "mounts"
	archivesTag  = "archive"
	agentTag     = "agent"
)

// variables are what stands in paths.
var variables = map[string]openapi.Parameter{
	"path":      {Description: "a path in the sandbox", Example: "srv/a.txt"},
	"id":        {Description: "which one: of a process its pid or its name, of an upload its id", Example: "web"},
	"port":      {Description: "a port that something in the sandbox listens on", Example: 3000, Schema: &openapi.Schema{Type: "integer", Minimum: new(1), Maximum: new(65535)}},
	"mountPath": {Description: "where the drive is, absolute; escape its slashes", Example: "/mnt/data"},
}

// query is a parameter of a query.
func query(name, about string, is *openapi.Schema) openapi.Parameter {
	return openapi.Parameter{Name: name, In: "query", Description: about, Schema: is}
}

// What several calls ask for.
var (
	recursive = query("recursive", "true deletes a directory with all that is in it", flag)
	patterns  = query("patterns", "globs of file names, with commas, such as *.go,*.md", text)
	results   = query("maxResults", "how many; 0 is all, within a bound", &openapi.Schema{Type: "integer", Minimum: new(0)})
	excludes  = query("excludeDirs", "names of directories to skip, with commas, in the place of those that are skipped otherwise; empty skips none", text)
	hidden    = query("excludeHidden", "false looks at names that begin with a dot, too", flag)

	download  = query("download", "true answers the bytes of a file as they are", flag)
	byteRange = openapi.Parameter{Name: "Range", In: "header", Description: "a part of a file that is sent as it is", Schema: text, Example: "bytes=0-99"}
)

// content is an answer with the bytes of a file.
func content(about string) openapi.Response {
	all := map[string]openapi.Media{}
	for _, form := range file.ContentTypes() {
		all[form] = openapi.Media{Schema: &openapi.Schema{Type: "string", Format: "binary"}}
	}
	return openapi.Response{Description: about, Content: all}
}

// contentOr is content, or a file as JSON.
func contentOr(about string) openapi.Response {
	all := content(about)
	all.Content[jsonType] = openapi.Media{Schema: &openapi.Schema{Ref: "#/components/schemas/FileContent"}}
	return all
}

// form is a body of several parts, of which one is the file.
func form(more map[string]*openapi.Schema) map[string]openapi.Media {
	parts := map[string]*openapi.Schema{"file": {Type: "string", Format: "binary", Description: "the content; this part has a filename"}}
	maps.Copy(parts, more)
	return media(formType, &openapi.Schema{Type: "object", Properties: parts, Required: []string{"file"}}, "")
}

const (
	done      = `{"path": "/srv/a.txt", "message": "File created/updated successfully"}`
	directory = `{"path": "/srv", "name": "srv", "files": [{"path": "/srv/a.txt", "name": "a.txt", "permissions": "644", "size": 6,
 "lastModified": "2026-01-31T12:00:00.123456789Z", "owner": "root", "group": "root"}], "subdirectories": [{"path": "/srv/sub", "name": "sub"}]}`
	processExample = `{"pid": "12", "name": "first", "command": "cat /srv/a.txt", "workingDir": "/", "status": "completed",
 "startedAt": "Sat, 31 Jan 2026 12:00:00 GMT", "completedAt": "Sat, 31 Jan 2026 12:00:00 GMT", "exitCode": 0, "logs": "hello\n",
 "stdout": "hello\n", "stderr": "", "restartOnFailure": false, "maxRestarts": 0, "restartCount": 0, "keepAlive": false, "stdin": false, "signal": 0}`
	statusExample = `{"state": "active", "export": {"state": "succeeded", "startedAt": "2026-01-31T12:00:00Z", "finishedAt": "2026-01-31T12:00:02Z",
 "size": 10240, "uploaded": true}}`
	welcomeExample = `{"message": "Welcome to your Doze sandbox", "documentation": "Files are at /filesystem, processes at /process.",
 "description": "The API of one sandbox: files, processes and terminals."}`
	mountExample = `{"driveName": "data", "mountPath": "/mnt/data", "drivePath": "/", "readOnly": false, "uidMap": "", "gidMap": ""}`
)

func welcome(id string) operation {
	return operation{id: id, tag: agentTag, summary: "Say where to begin", answers: welcomeExample}
}

// throughPort is a request to what listens on a port of the sandbox.
func throughPort(id, method string) operation {
	op := operation{
		id: id, tag: networkTag, summary: method + " from a server in the sandbox",
		about: "The request goes to the port with the rest of the path. The answer is that of the server. WebSockets work too.",
		no:    true, fails: []int{400, 404, 503},
		out: map[int]openapi.Response{200: {Description: "what the server answers, with its own status and type", Content: media("*/*", &openapi.Schema{}, "")}},
	}
	if method != "GET" && method != "DELETE" {
		op.in, op.optional = media("*/*", &openapi.Schema{}, ""), true
	}
	return op
}

// operations has each route of the API.
var operations = map[string]operation{
	"GET /":    welcome("welcome"),
	"POST /":   welcome("welcomePost"),
	"PUT /":    welcome("welcomePut"),
	"DELETE /": welcome("welcomeDelete"),
	"PATCH /":  welcome("welcomePatch"),
	"GET /openapi.json": {
		id: "describeSandboxApi", tag: agentTag, summary: "Describe this API", about: "The answer is this document.", no: true,
		out: map[int]openapi.Response{200: {Description: "an OpenAPI 3.1 document", Content: media(jsonType, &openapi.Schema{Type: "object"}, "")}},
	},
	"GET /health": {
		id: "sandboxHealth", tag: agentTag, summary: "Say how the agent is",
		answers: `{"status": "ok", "version": "v1.0.0", "gitCommit": "unknown", "buildTime": "unknown", "goVersion": "go1.26.0", "os": "linux", "arch": "amd64",
 "uptime": "1m0s", "uptimeSeconds": 60.1, "upgradeCount": 0, "startedAt": "2026-01-31T12:00:00Z",
 "lastUpgrade": {"status": "idle", "step": "none", "version": "v1.0.0"}, "wakeCount": 0}`,
	},
	"POST /upgrade": {
		id: "upgradeSandboxApi", tag: agentTag, summary: "Count an upgrade as done",
		about: "The platform replaces its agents itself, so that there is nothing to do. Clients wait for the count in /health.",
		asks:  `{"version": "latest", "baseUrl": ""}`, optional: true, fails: []int{413},
		answers: `{"message": "Nothing to upgrade: the platform replaces its agents itself", "version": "latest", "baseUrl": ""}`,
	},
	"POST /environment/reload": {
		id: "reloadEnvironment", tag: agentTag, summary: "Take variables from the document of the sandbox",
		about: "New processes get the variables of the document. Variables of an earlier document that are not in this one get back what they were.",
		fails: []int{404, 409, 500}, answers: `{"generation": 2, "applied": 3, "removed": 1}`,
	},

	"GET /filesystem/tree/{path...}": {
		id: "readTree", tag: filesTag, summary: "List a directory", fails: []int{400, 422}, answers: directory,
	},
	"PUT /filesystem/tree/{path...}": {
		id: "writeTree", tag: filesTag, summary: "Write many files at once",
		about: "The directory is made if it is missing. Names lead nowhere but below it.",
		asks:  `{"files": {"main.py": "print('hello')\n", "data/empty": null}}`, fails: []int{400, 409, 413, 422, 429}, answers: directory,
	},
	"DELETE /filesystem/tree/{path...}": {
		id: "deleteTree", tag: filesTag, summary: "Delete a directory", values: []openapi.Parameter{recursive},
		fails: []int{400, 404, 409, 422}, answers: `{"path": "/srv/sub", "message": "Directory deleted successfully"}`,
	},
	"GET /filesystem/{path...}": {
		id: "readFile", tag: filesTag, summary: "Read a file or list a directory",
		about:  "A file is JSON with its content, unless the caller asks for its bytes: by download=true, or by a header Accept without JSON and */*. Bytes may be asked for in part, and on conditions.",
		values: []openapi.Parameter{download, byteRange}, fails: []int{400, 404, 422}, answers: directory,
		out: map[int]openapi.Response{
			200: contentOr("a directory, a file as JSON, or its bytes"),
			206: content("the part that was asked for"),
			304: {Description: "the file has not changed"},
			412: {Description: "a condition does not hold"},
			416: {Description: "the file has no such part"},
		},
	},
	"PUT /filesystem/{path...}": {
		id: "writeFile", tag: filesTag, summary: "Write a file or make a directory",
		about: "A file is written whole or not at all, and its missing parents are made. Large files and those that are not text go as multipart/form-data.",
		in:    form(map[string]*openapi.Schema{"permissions": {Type: "string", Description: "octal, before the file"}}),
		asks:  `{"content": "hello\n", "permissions": "0644"}`, fails: []int{400, 409, 413, 422, 429}, answers: done,
	},
	"DELETE /filesystem/{path...}": {
		id: "deleteFile", tag: filesTag, summary: "Delete a file or a directory", values: []openapi.Parameter{recursive},
		fails: []int{400, 404, 409, 422}, answers: `{"path": "/srv/a.txt", "message": "File deleted successfully"}`,
	},

	"GET /filesystem-multipart": {
		id: "listUploads", tag: uploadsTag, summary: "List the uploads that have not ended",
		answers: `{"uploads": [{"uploadId": "1f0c", "path": "/srv/large", "permissions": 420, "initiatedAt": "2026-01-31T12:00:00Z", "parts": {}}]}`,
	},
	"POST /filesystem-multipart/initiate/{path...}": {
		id: "startUpload", tag: uploadsTag, summary: "Begin an upload", asks: `{"permissions": "0644"}`, optional: true,
		fails: []int{400, 409, 413, 422}, answers: `{"uploadId": "1f0c", "path": "/srv/large"}`,
	},
	"PUT /filesystem-multipart/{id}/part": {
		id: "uploadPart", tag: uploadsTag, summary: "Upload a part", about: "A part that comes again replaces the one before.",
		values: []openapi.Parameter{{
			Name: "partNumber", In: "query", Required: true, Description: "the place of the part", Schema: &openapi.Schema{Type: "integer", Minimum: new(1), Maximum: new(10_000)},
		}},
		in: form(nil), fails: []int{400, 404, 409, 422, 500},
		answers: `{"partNumber": 1, "etag": "5d41402abc4b2a76b9719d911017c592", "size": 5, "uploadedAt": "2026-01-31T12:00:00Z"}`,
	},
	"GET /filesystem-multipart/{id}/parts": {
		id: "listUploadParts", tag: uploadsTag, summary: "List the parts of an upload", fails: []int{404, 500},
		answers: `{"uploadId": "1f0c", "parts": [{"partNumber": 1, "etag": "5d41402abc4b2a76b9719d911017c592", "size": 5, "uploadedAt": "2026-01-31T12:00:00Z"}]}`,
	},
	"POST /filesystem-multipart/{id}/complete": {
		id: "completeUpload", tag: uploadsTag, summary: "Make the file of its parts",
		asks: `{"parts": [{"partNumber": 1, "etag": "5d41402abc4b2a76b9719d911017c592"}]}`, fails: []int{400, 404, 409, 422, 500},
		answers: `{"path": "/srv/large", "message": "Multipart upload completed successfully"}`,
	},
	"DELETE /filesystem-multipart/{id}/abort": {
		id: "abortUpload", tag: uploadsTag, summary: "Drop an upload", fails: []int{404, 409, 500},
		answers: `{"path": "", "message": "Multipart upload aborted successfully"}`,
	},

	"GET /filesystem-find/{path...}": {
		id: "findFiles", tag: searchTag, summary: "Find files by name",
		values: []openapi.Parameter{query("type", "what to find; file unless it is said", &openapi.Schema{Type: "string", Enum: []string{"file", "directory"}}), patterns, results, excludes, hidden},
		fails:  []int{400, 404, 422}, answers: `{"matches": [{"path": "src/main.go", "type": "file"}], "total": 1}`,
	},
	"GET /filesystem-search/{path...}": {
		id: "searchFiles", tag: searchTag, summary: "Find files by a part of the path",
		about:  "The letters of the query are in the path, in their order. Without a query, it is the last element of the path.",
		values: []openapi.Parameter{query("query", "letters of the path", text), patterns, results, excludes, hidden},
		fails:  []int{400, 404, 422}, answers: `{"matches": [{"path": "src/main.go", "score": 212, "type": "file"}], "total": 1}`,
	},
	"GET /filesystem-content-search/{path...}": {
		id: "searchText", tag: searchTag, summary: "Find text in files",
		values: []openapi.Parameter{
			{Name: "query", In: "query", Required: true, Description: "a plain text", Schema: text},
			query("caseSensitive", "true tells capitals from others", flag),
			query("contextLines", "lines before and after each match, at most 50", &openapi.Schema{Type: "integer", Minimum: new(0)}),
			query("filePattern", "a glob of file names, such as *.go", text), results, excludes,
		},
		fails:   []int{400, 404, 422},
		answers: `{"query": "TODO", "matches": [{"path": "src/main.go", "line": 3, "column": 4, "text": "// TODO"}], "total": 1}`,
	},
	"GET /watch/filesystem/{path...}": {
		id: "watchFiles", tag: searchTag, summary: "Stream the changes in a directory",
		about:  "Each line is the JSON of an event, or [keepalive]. A path that ends in /** means all directories below it. The stream ends when the caller leaves or the directory does.",
		values: []openapi.Parameter{query("ignore", "names to leave out, with commas", text)},
		no:     true, fails: []int{400, 404, 422},
		out: map[int]openapi.Response{200: {Description: "lines, each of which is a FileEvent", Content: media(textType, text, `{"op":"CREATE","name":"a.txt","path":"/srv","error":null}`)}},
	},

	"GET /process": {
		id: "listProcesses", tag: processesTag, summary: "List processes", about: "The newest is first, and each has the end of its output.",
		answers: "[" + processExample + "]",
	},
	"POST /process": {
		id: "startProcess", tag: processesTag, summary: "Run a command",
		about: "The answer comes at once, when the process serves its ports, or with its output when it has ended. With the header Accept: text/event-stream it is a stream of lines, which ends with the result.",
		asks:  `{"name": "first", "command": "cat /srv/a.txt", "waitForCompletion": true, "timeout": 30}`,
		fails: []int{400, 409, 413, 422, 429, 503}, answers: processExample,
		out: map[int]openapi.Response{200: {Description: "the process, or a stream of lines, each of which is a ProcessEvent", Content: map[string]openapi.Media{
			linesType: {Schema: &openapi.Schema{Ref: "#/components/schemas/ProcessEvent"}, Example: `{"type":"stdout","data":"hello\n"}`},
		}}},
	},
	"GET /process/{id}": {
		id: "getProcess", tag: processesTag, summary: "Read a process", about: "It has the end of its output.", fails: []int{404}, answers: processExample,
	},
	"DELETE /process/{id}": {
		id: "stopProcess", tag: processesTag, summary: "Ask a process and its group to end (SIGTERM)", fails: []int{404, 409},
		answers: `{"path": "", "message": "Process stopped successfully"}`,
	},
	"DELETE /process/{id}/kill": {
		id: "killProcess", tag: processesTag, summary: "End a process and its group at once (SIGKILL)", fails: []int{404, 409},
		answers: `{"path": "", "message": "Process killed successfully"}`,
	},
	"GET /process/{id}/logs": {
		id: "getProcessLogs", tag: processesTag, summary: "Read what a process wrote", fails: []int{404},
		answers: `{"stdout": "hello\n", "stderr": "", "logs": "hello\n"}`,
	},
	"GET /process/{id}/logs/stream": {
		id: "streamProcessLogs", tag: processesTag, summary: "Stream what a process writes",
		about: "Each line is stdout: or stderr: and a line of the output, from its beginning on, or [keepalive]. The stream ends with the process.",
		fails: []int{404}, out: map[int]openapi.Response{200: {Description: "lines of text", Content: media(textType, text, "stdout:hello\n")}},
	},
	"POST /process/{id}/stdin": {
		id: "writeProcessInput", tag: processesTag, summary: "Write to the standard input of a process",
		about: "The type of the body does not matter. If this fails, the header Doze-Unwritten has the number of bytes, from the end, that the process did not take.",
		in:    map[string]openapi.Media{bytesType: {Schema: &openapi.Schema{Type: "string", Format: "binary"}, Example: "yes\n"}},
		fails: []int{400, 404, 409, 413, 422, 503}, answers: `{"path": "", "message": "Input written successfully"}`,
	},
	"DELETE /process/{id}/stdin": {
		id: "closeProcessInput", tag: processesTag, summary: "Close the standard input of a process", fails: []int{400, 404, 409, 422},
		answers: `{"path": "", "message": "Input closed successfully"}`,
	},

	"GET /network/process/{id}/ports": {
		id: "listProcessPorts", tag: networkTag, summary: "List the ports of a process", fails: []int{400, 422},
		answers: `{"pid": 12, "ports": [{"pid": 12, "protocol": "tcp", "localAddr": "0.0.0.0", "localPort": 3000, "remoteAddr": "0.0.0.0", "remotePort": 0,
 "state": "LISTEN", "processName": "node"}]}`,
	},
	"POST /network/process/{id}/monitor": {
		id: "startPortMonitor", tag: networkTag, summary: "Call back when a process serves a new port",
		asks: `{"callback": "https://example.com/ports"}`, fails: []int{400, 409, 413, 422}, answers: `{"path": "", "message": "Port monitoring started"}`,
	},
	"DELETE /network/process/{id}/monitor": {
		id: "stopPortMonitor", tag: networkTag, summary: "Stop calling back", fails: []int{400, 409}, answers: `{"path": "", "message": "Port monitoring stopped"}`,
	},
	"PUT /network/tunnel/config": {
		id: "setTunnel", tag: networkTag, summary: "Check a tunnel, which sandboxes do not get", about: "The answer is always an error: sandboxes have no tunnels of their own.",
		asks: `{"config": "e30="}`, no: true, fails: []int{400, 409, 413, 422, 500},
	},
	"DELETE /network/tunnel": {
		id: "deleteTunnel", tag: networkTag, summary: "Remove the tunnel, of which there is none", about: "The answer is always 400.", no: true, fails: []int{400, 409},
	},
	"GET /port/{port}/{path...}":    throughPort("portGet", "GET"),
	"POST /port/{port}/{path...}":   throughPort("portPost", "POST"),
	"PUT /port/{port}/{path...}":    throughPort("portPut", "PUT"),
	"PATCH /port/{port}/{path...}":  throughPort("portPatch", "PATCH"),
	"DELETE /port/{port}/{path...}": throughPort("portDelete", "DELETE"),
	"GET /tcp/{port}": {
		id: "connectPort", tag: networkTag, summary: "Connect to a port of the sandbox", about: "For protocols other than HTTP. The request needs the headers Connection: Upgrade and Upgrade: tcp, over HTTP/1.1. After the answer, each byte is one of the connection.",
		no: true, fails: []int{400, 404, 503},
		out: map[int]openapi.Response{101: {Description: "the connection is one to the port now"}},
	},
	"GET /ssh": {
		id: "openSSH", tag: terminalsTag, summary: "Connect to the SSH server of the sandbox", about: "The request needs the headers Connection: Upgrade and Upgrade: ssh, over HTTP/1.1. After the answer, each byte is one of the connection. The server asks for no credential. doze ssh is a client.",
		no: true, fails: []int{400, 409, 429},
		out: map[int]openapi.Response{101: {Description: "the connection speaks SSH now"}},
	},

	"GET /terminal": {
		id: "terminalPage", tag: terminalsTag, summary: "A page with a terminal", about: "A browser opens it with a ticket, see POST /sandboxes/{name}/tickets of the control API.",
		values: []openapi.Parameter{query("token", "a ticket", text)}, fails: []int{404, 500},
		out: map[int]openapi.Response{200: {Description: "a page", Content: media(pageType, text, "")}},
	},
	"GET /terminal/ws": {
		id: "openTerminal", tag: terminalsTag, summary: "Connect to a terminal by WebSocket",
		about: "Both sides send TerminalFrame as text messages: input, resize and signal go in, output and error come out. A client that offers the WebSocket protocol " + doze.TerminalProtocol + " sends start first, misses no output, and gets exit at the end.",
		values: []openapi.Parameter{
			query("sessionId", "connections with one name share a shell", text), query("shell", "the program to run", text), query("workingDir", "where it starts", text),
			query("cols", "columns", &openapi.Schema{Type: "integer", Default: 80}), query("rows", "rows", &openapi.Schema{Type: "integer", Default: 24}),
			query("token", "a ticket, an API key or an access token, for programs that can set no header", text),
		},
		no: true, optional: true, fails: []int{400, 404, 409},
		out: map[int]openapi.Response{101: {Description: "the connection is a WebSocket now"}},
	},

	"POST /mcp": {
		id: "callTool", tag: toolsTag, summary: "Speak the Model Context Protocol", about: "One message of JSON-RPC, such as tools/list or tools/call. There are no sessions. A notification is answered by 202.",
		in: media(jsonType, &openapi.Schema{Type: "object", Description: "a message of JSON-RPC 2.0"},
			`{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "processExecute", "arguments": {"command": "ls", "waitForCompletion": true}}}`),
		fails: []int{400, 409, 413, 429},
		out: map[int]openapi.Response{
			200: {Description: "the answer of JSON-RPC 2.0", Content: media(jsonType, &openapi.Schema{Type: "object"}, `{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "{}"}]}}`)},
			202: {Description: "a notification was read"},
			400: {Description: "no message of JSON-RPC 2.0", Content: media(textType, text, "malformed payload")},
		},
	},
	"GET /mcp": {
		id: "listenToTools", tag: toolsTag, summary: "Refuse a stream of messages", about: "The answer is always 405: the agent sends no messages by itself.", fails: []int{405},
	},
	"PUT /codegen/fastapply/{path...}": {
		id: "applyEdit", tag: toolsTag, summary: "Refuse an edit by a language model", about: "The answer is always 400: it needs a service outside of the sandbox.", no: true, fails: []int{400, 409},
	},
	"GET /codegen/reranking/{path...}": {
		id: "rankFiles", tag: toolsTag, summary: "Refuse a ranking by a language model", about: "The answer is always 400: it needs a service outside of the sandbox.", no: true, fails: []int{400},
	},

	"GET /drives/mount": {
		id: "listMounts", tag: mountsTag, summary: "List the drives that are mounted", fails: []int{404, 503}, answers: `{"mounts": [` + mountExample + `]}`,
	},
	"POST /drives/mount": {
		id: "mountDrive", tag: mountsTag, summary: "Mount a drive",
		asks: `{"driveName": "data", "mountPath": "/mnt/data"}`, fails: []int{400, 404, 409, 422, 429, 503},
		answers: `{"success": true, "message": "Drive mounted successfully", "driveName": "data", "mountPath": "/mnt/data", "drivePath": "/", "readOnly": false, "uidMap": "", "gidMap": ""}`,
	},
	"DELETE /drives/mount/{mountPath...}": {
		id: "unmountDrive", tag: mountsTag, summary: "Unmount a drive", fails: []int{400, 404, 409, 422, 503},
		answers: `{"success": true, "message": "Drive unmounted successfully", "mountPath": "/mnt/data"}`,
	},

	"POST /archive/export": {
		id: "exportArchive", tag: archivesTag, summary: "Send the files that differ from an image to an address",
		about: "It stops all processes, and the sandbox refuses changes until resumeArchive. A dry run does neither.",
		asks:  `{"imageMountPoint": "/mnt/image", "url": "https://example.com/archive.tar", "async": false}`, fails: []int{400, 409, 413, 422, 500, 504},
		answers: `{"manifest": {"version": 1, "root": "/", "createdAt": "2026-01-31T12:00:00Z", "added": 2}, "size": 10240, "duration": "1.2s", "uploaded": true}`,
		out:     map[int]openapi.Response{202: {Description: "it has begun", Content: media(jsonType, &openapi.Schema{Ref: "#/components/schemas/ArchiveProgress"}, `{"state": "running", "startedAt": "2026-01-31T12:00:00Z"}`)}},
	},
	"GET /archive/status":  {id: "archiveStatus", tag: archivesTag, summary: "Say how the export goes", answers: statusExample},
	"POST /archive/resume": {id: "resumeArchive", tag: archivesTag, summary: "Let the sandbox change again", fails: []int{409}, answers: statusExample},
}
