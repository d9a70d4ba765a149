package description

import (
	"io/fs"
	"reflect"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/archive"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/export"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/port"
	"github.com/dozehq/doze/internal/agent/process"
	"github.com/dozehq/doze/internal/agent/search"
	"github.com/dozehq/doze/internal/agent/system"
	"github.com/dozehq/doze/internal/agent/terminal"
	"github.com/dozehq/doze/internal/agent/tree"
	"github.com/dozehq/doze/internal/agent/tunnel"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/agent/watch"
	"github.com/dozehq/doze/internal/openapi"
)

// fileContent is the answer to a read of a file as JSON.
type fileContent struct {
	file.File

	Content string `json:"content"`
}

// besides are what some calls answer in the place of the JSON of their routes.
var besides = []reflect.Type{
	reflect.TypeFor[fileContent](), reflect.TypeFor[watch.Event](), reflect.TypeFor[process.Event](), reflect.TypeFor[terminal.Frame](),
}

// The answers about mounts are those of the platform: see package control.
type (
	mounts struct {
		Mounts []doze.DriveMount `json:"mounts"`
	}
	mounted struct {
		Success bool   `json:"success"`
		Message string `json:"message"`
		doze.DriveMount
	}
	unmounted struct {
		Success   bool   `json:"success"`
		Message   string `json:"message"`
		MountPath string `json:"mountPath"`
	}
)

// sandboxError is an error of the agent, or of the platform on the way to it.
type sandboxError struct {
	Error any `json:"error"`
}

// platformError is what the platform says of a request that no sandbox answered.
type platformError struct {
	Code      string `json:"code"`
	Status    int    `json:"status"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	Action    string `json:"action"`
	DoNot     string `json:"do_not"`
	Origin    string `json:"origin"`
	Docs      string `json:"docs_url"`
	At        string `json:"timestamp"`
}

var (
	text    = &openapi.Schema{Type: "string"}
	flag    = &openapi.Schema{Type: "boolean"}
	nullful = openapi.Schema{OneOf: []*openapi.Schema{{Type: "string"}, {Type: "null"}}}
	instant = &openapi.Schema{Type: "string", Format: "date-time"}
)

func words(all ...string) openapi.Schema { return openapi.Schema{Type: "string", Enum: all} }
func says(about string) openapi.Schema   { return openapi.Schema{Description: about} }

// schemas are the types of the API, with what they do not show by themselves.
func schemas() *openapi.Schemas {
	s := &openapi.Schemas{
		Names: map[reflect.Type]string{
			reflect.TypeFor[system.Greeting]():      "Welcome",
			reflect.TypeFor[system.Health]():        "SandboxHealth",
			reflect.TypeFor[system.LastUpgrade]():   "SandboxUpgrade",
			reflect.TypeFor[system.Check]():         "SandboxHealthCheck",
			reflect.TypeFor[system.UpgradeAnswer](): "UpgradeResponse",
			reflect.TypeFor[environ.Reloaded]():     "ReloadedVariables",
			reflect.TypeFor[file.Write]():           "FileRequest",
			reflect.TypeFor[file.UploadBegun]():     "UploadStarted",
			reflect.TypeFor[file.WantedParts]():     "UploadCompleteRequest",
			reflect.TypeFor[tree.Files]():           "TreeRequest",
			reflect.TypeFor[upload.Part]():          "UploadPart",
			reflect.TypeFor[search.Found]():         "FoundFiles",
			reflect.TypeFor[search.FoundMatch]():    "FoundFile",
			reflect.TypeFor[search.Ranked]():        "RankedFiles",
			reflect.TypeFor[search.RankedMatch]():   "RankedFile",
			reflect.TypeFor[search.Hits]():          "TextMatches",
			reflect.TypeFor[search.Hit]():           "TextMatch",
			reflect.TypeFor[watch.Event]():          "FileEvent",
			reflect.TypeFor[command.Spec]():         "ProcessRequest",
			reflect.TypeFor[process.Info]():         "Process",
			reflect.TypeFor[process.Event]():        "ProcessEvent",
			reflect.TypeFor[process.Written]():      "ProcessOutput",
			reflect.TypeFor[port.Sockets]():         "ProcessPorts",
			reflect.TypeFor[port.Socket]():          "ProcessPort",
			reflect.TypeFor[port.Callback]():        "MonitorRequest",
			reflect.TypeFor[tunnel.Request]():       "TunnelRequest",
			reflect.TypeFor[terminal.Frame]():       "TerminalFrame",
			reflect.TypeFor[export.Request]():       "ArchiveExportRequest",
			reflect.TypeFor[export.Result]():        "ArchiveResult",
			reflect.TypeFor[export.Progress]():      "ArchiveProgress",
			reflect.TypeFor[export.Status]():        "ArchiveStatus",
			reflect.TypeFor[archive.Manifest]():     "ArchiveManifest",
			reflect.TypeFor[archive.Change]():       "ArchiveChange",
			reflect.TypeFor[archive.Parts]():        "ArchivePartsRequest",
			reflect.TypeFor[mounts]():               "DriveMounts",
			reflect.TypeFor[mounted]():              "MountedDrive",
			reflect.TypeFor[unmounted]():            "UnmountedDrive",
			reflect.TypeFor[file.Directory]():       "Directory",
			reflect.TypeFor[struct{}]():             "Nothing",
		},
		Types: map[reflect.Type]*openapi.Schema{
			reflect.TypeFor[time.Time]():   instant,
			reflect.TypeFor[doze.Time]():   instant,
			reflect.TypeFor[fs.FileMode](): {Type: "integer"},
		},
		Needs: map[string][]string{
			"ProcessRequest":        {"command"},
			"TreeRequest":           {"files"},
			"UploadCompleteRequest": {"parts"},
			"MonitorRequest":        {"callback"},
			"TunnelRequest":         {"config"},
			"ArchiveExportRequest":  {"imageMountPoint"},
			"ArchivePartsRequest":   {"partSize", "partUrls", "completeUrl"},
			"UploadPart":            {"partNumber"},
			"DriveMount":            {"driveName", "mountPath"},
		},
		Unset: []string{"UploadPart.uploadedAt"},
	}

	platform := s.Of(reflect.TypeFor[platformError](), openapi.Answer)
	s.Members = map[string]openapi.Schema{
		"SandboxError.error": {OneOf: []*openapi.Schema{{Type: "string", Description: "what is wrong, and what to do"}, platform}},

		"SandboxHealth.healthCheck":   says("of the image; absent without one, and once its process is over"),
		"SandboxHealthCheck.status":   words("starting", "healthy", "unhealthy"),
		"SandboxHealthCheck.failures": says("in a row"),
		"SandboxHealthCheck.exitCode": says("of the last check; -1 if it did not end by itself"),
		"SandboxHealthCheck.output":   says("the end of what the last check wrote"),

		"File.permissions":          says("octal, such as 644"),
		"File.size":                 says("bytes"),
		"File.lastModified":         {Format: "date-time"},
		"File.owner":                says("a name, or a number without one"),
		"FileContent.content":       says("the text of the file; bytes that are not UTF-8 are U+FFFD"),
		"FileRequest.content":       says("the text of the file"),
		"FileRequest.isDirectory":   says("make a directory; then there is no content"),
		"FileRequest.permissions":   says("octal, such as 0644, which is what a file has otherwise; a directory has 0755"),
		"UploadRequest.permissions": says("octal, such as 0644"),
		"TreeRequest.files":         {Description: "what is in each file, by its path below the directory", Values: &openapi.Schema{OneOf: nullful.OneOf}},
		"Upload.permissions":        {Type: "integer", Description: "the bits of the permissions, as a number"},
		"UploadPart.partNumber":     between(1, 10_000),
		"UploadPart.etag":           says("MD5 of the part, hexadecimal"),
		"UploadPart.size":           says("bytes"),

		"FoundFile.type":        words("file", "directory"),
		"FoundFile.path":        says("relative to the directory that was searched"),
		"FoundFiles.incomplete": says("a bound cut the answer"),
		"RankedFile.type":       words("file", "directory"),
		"RankedFile.score":      says("compares within one answer"),
		"TextMatch.line":        says("from 1"),
		"TextMatch.column":      says("of the first occurrence, in bytes from 1"),
		"TextMatch.text":        says("the line, at most 2 KiB of it"),
		"FileEvent.op":          says("CREATE, WRITE, REMOVE, RENAME or CHMOD; empty with an error"),
		"FileEvent.error":       nullful,

		"ProcessRequest.command":           says("a program with arguments, or a command of the shell; empty with the name entrypoint, for the process of the image"),
		"ProcessRequest.name":              {Description: "to find the process by; unique among those that run", MaxLength: 256},
		"ProcessRequest.workingDir":        says("where it starts; the working directory of the image otherwise"),
		"ProcessRequest.env":               says("variables besides those of the sandbox"),
		"ProcessRequest.waitForCompletion": says("answer when it has ended, with its output"),
		"ProcessRequest.timeout":           says("seconds that the call waits; with keepAlive, after which the process is killed: 600 unless it is said, and 0 for never"),
		"ProcessRequest.waitForPorts":      says("answer when the process serves these ports"),
		"ProcessRequest.restartOnFailure":  says("start it again when it fails"),
		"ProcessRequest.maxRestarts":       says("how often; negative means no limit"),
		"ProcessRequest.keepAlive":         says("the sandbox stays awake while the process runs"),
		"ProcessRequest.stdin":             says("it gets a standard input, see writeProcessInput"),
		"Process.pid":                      says("of the first start"),
		"Process.status":                   words("running", "completed", "failed", "stopped", "killed"),
		"Process.completedAt":              nullful,
		"Process.logs":                     nullful,
		"Process.exitCode":                 says("-1 after a signal"),
		"Process.signal":                   says("the number of the signal that ended it, or 0"),
		"ProcessEvent.type":                words("stdout", "stderr", "keepalive", "result", "error"),
		"ProcessEvent.data":                says("output, the error, or for a result the JSON of the process"),
		"ProcessOutput.logs":               says("stdout, then stderr"),
		"ProcessPort.pid":                  says("the process that has the socket"),
		"ProcessPort.state":                says("as ss writes it, such as LISTEN"),
		"MonitorRequest.callback":          says("an address that gets POST with {pid, port} for each new port"),
		"TunnelRequest.config":             says("base64 of the JSON of a tunnel"),
		"TerminalFrame.type":               words("start", "input", "resize", "signal", "output", "error", "exit"),
		"TerminalFrame.data":               says("what was typed, what is shown, the error, or the name of a signal such as TERM"),
		"TerminalFrame.command":            says("of start: text for a shell; without it the shell itself runs"),
		"TerminalFrame.env":                says("of start: further variables of the command"),
		"TerminalFrame.code":               says("of exit: the exit code, -1 after a signal"),
		"TerminalFrame.signal":             says("of exit: the number of the signal that ended it, or 0"),

		"ReloadedVariables.skipped": says("entries that are no variables"),

		"Target.url":                              says("where the tar goes by PUT; not with multipart"),
		"Target.headers":                          says("headers of the uploads"),
		"ArchiveExportRequest.async":              says("answer 202 at once; archiveStatus tells how it goes"),
		"ArchiveExportRequest.dryRun":             says("say what would be sent, and change nothing"),
		"ArchiveExportRequest.excludes":           says("paths to leave out"),
		"ArchiveExportRequest.saveProcesses":      {Type: "boolean", Description: "list the commands in the archive", Default: true},
		"ArchiveExportRequest.stopTimeoutSeconds": {Description: "how long processes may take to end; 0 kills at once", Default: 10, Minimum: new(0), Maximum: new(600)},
		"ArchiveExportRequest.imageMountPoint":    says("the directory that has the files of the image, to compare with"),
		"ArchivePartsRequest.partSize":            says("bytes of all parts but the last"),
		"ArchiveProgress.state":                   words("running", "succeeded", "failed"),
		"ArchiveStatus.state":                     words("active", "quiescing", "quiesced"),
		"ArchiveChange.size":                      says("bytes of a regular file"),
		"PlatformError.code":                      says("a word such as SANDBOX_NOT_FOUND"),
		"PlatformError.retryable":                 says("the same request may succeed later"),
	}
	return s
}

func between(least, most int) openapi.Schema {
	return openapi.Schema{Minimum: &least, Maximum: &most}
}
