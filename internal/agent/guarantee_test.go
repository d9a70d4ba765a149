package agent_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// guarantees are what servers of such an API have failed their clients in, and the
// tests that say that this one does not: directories and names of tests.
var guarantees = map[string][]string{
	// Files.
	"/filesystem/treehouse is no tree":                                     {". TestMatch"},
	"a path is never cleaned, and nobody is redirected":                    {". TestNeverRedirects", ". FuzzMatch", "place FuzzPath"},
	"a file that is read has its name":                                     {"file TestReadFile"},
	"what is no regular file does not block its reader":                    {"file TestReadRefuses"},
	"a large file is read as JSON without being held in memory":            {"../../cmd/doze-agent TestMemoryIsFlat", "file TestReadLargeFileAsJSON"},
	"a broken upload leaves what was there":                                {"file TestWriteRefuses", "file FuzzUpload", "owner TestReplaceCleansUp"},
	"a large write as JSON is not held in memory, and whole or not at all": {"../../cmd/doze-agent TestMemoryIsFlat", "file TestContentIsWhole", "tree TestTreeBody", "file FuzzContent"},
	"a reader sees one content or the other":                               {"file TestWritesAreAtomic"},
	"the root and the working directory cannot be deleted":                 {"file TestDelete", "tool TestToolErrors"},
	"no name of a tree leads out of its root, nor a link":                  {"tree TestWriteTreeStaysInside", "tree FuzzTree"},
	"uploads that nobody goes on with expire":                              {"upload TestExpiry"},
	"uploads go to the disk as they come":                                  {"../../cmd/doze-agent TestMemoryIsFlat"},
	"who stalls costs no memory":                                           {"../../cmd/doze-agent TestMemoryIsFlatForThoseWhoStall"},
	"new files are the user's, old ones keep their owner":                  {". TestFilesOfUser"},
	"answers are in no cache":                                              {". TestTransport"},
	"an empty excludeDirs excludes nothing":                                {"search TestFind", "search TestGrep"},
	"a search in a directory that is not there is 404":                     {"file TestSearches"},
	"a fuzzy search takes a query, or the end of its path":                 {"file TestSearches", "search TestFuzzy"},
	"a search ends, however many lines match":                              {"search TestGrepIsBounded", "tool TestGrepToolIsBounded"},
	"a search without a hit is an empty list":                              {"file TestSearches"},
	"a search shows the lines around a hit":                                {"search TestGrep"},
	"the tool for searching stays in the working directory":                {"tool TestGrepToolIsBounded"},
	"a watch is there before its first event":                              {"file TestWatch"},
	"a watch says when it missed something":                                {"watch TestOverflow"},
	"a watch ends with its directory":                                      {"watch TestRootGoes", "file TestWatchEndsWithItsDirectory"},
	"files that are older than the watch of their directory are there":     {"watch TestNothingIsMissed"},
	"a silent watch says that it lives":                                    {"watch TestSilence"},

	// Processes.
	"one of many callers gets a name":                              {"process TestNamesAreUnique"},
	"names are no files":                                           {". TestNamesAreNoFiles", "upload TestErrors"},
	"times are in UTC, whatever the zone":                          {"process TestExecWaits", "file TestReadFile"},
	"a server in the background serves its port":                   {"process TestPortsAreFound"},
	"nobody waits for the ports of a dead process":                 {"process TestWaitForPorts"},
	"a port of the loopback is not served":                         {"process TestPortsAreFound"},
	"nothing but output looks like output":                         {"process TestSilentStreams", "process TestStreamIsLive"},
	"a silent stream says that it lives":                           {"process TestSilentStreams"},
	"every line of a log comes once and whole":                     {"process TestLogStreamIsExact", "output TestLines"},
	"a log goes on over restarts":                                  {"process TestLogStreamAcrossRestarts"},
	"the log of nobody is 404":                                     {"process TestIdentifiers"},
	"a slow reader loses nothing":                                  {"process TestSlowReaderLosesNothing"},
	"a reader that stands still does not hold a process up":        {"output TestStalledReaderLosesBytes"},
	"buffered output is bounded, on disk and in answers":           {"output TestRingHasTheEnd", "process TestBudgetEvictsTheOldest", "process TestSlowReaderLosesNothing"},
	"processes that are over are forgotten":                        {"process TestFinishedProcessesAreBounded", "process TestPruneByAge", "process TestPruneByText"},
	"a process can be stopped after a restart, and between two":    {"process TestStopAfterRestart", "process TestStopBetweenRestarts"},
	"a restart has the variables of its caller, and the first pid": {"process TestRestarts", "process TestStopBetweenRestarts"},
	"no signal goes to a process that is over":                     {"process TestStopAndKill"},
	"a stop is seen at once, and can be repeated":                  {"process TestStopAndKill", "process TestKillAfterStop"},
	"a signal reaches the whole group":                             {"process TestStopAndKill"},
	"what waits is not held up by those in the background":         {"process TestExecWaits"},
	"keepAlive ends with its process, in whatever way that ends":   {"process TestKeepAlive", "../../test/e2e TestAwake", "../../test/e2e TestKeepAliveIsUse"},
	"keepAlive that is switched off is refused":                    {"tool TestKeepAliveSwitchedOff"},
	"no descriptor outlives its process":                           {"../../cmd/doze-agent TestFirstProcess"},
	"the agent is the last to go when memory is short":             {"../../cmd/doze-agent TestFirstProcess"},
	"the image chooses the shell":                                  {"process TestShellOfTheImage"},
	"an image may have nothing but a program":                      {"../../test/e2e TestImageOfOneProgram", "../../cmd/doze-agent TestEmptyImage", "process TestNoShell"},
	"a user that is not there runs nothing":                        {". TestUnknownUser"},
	"nobody begins a line of the log but the agent":                {"journal TestLog"},

	// Network, drives, terminals.
	"the ports of a process are not those of pids that begin like it": {"proc TestFamily"},
	"a monitor ends when it is told to, and again":                    {"port TestMonitor"},
	"a mistake in an id map is the caller's":                          {"../../test/e2e TestDrives"},
	"a mount is there, or it is a conflict":                           {"../../test/e2e TestDrives"},
	"a terminal ends with its shell":                                  {"terminal TestTerminalEndsWithItsShell"},
	"a terminal ends all of its session":                              {"terminal TestTerminalKillsItsSession"},
	"no character is cut in two":                                      {"terminal TestTerminal", "process TestStreamingExec", "text FuzzCarry"},

	// The rest.
	"an upgrade runs nothing that a caller names": {"system TestUpgradeRunsNothing"},
	"a stream has no end of its own":              {". TestSlowUpload"},
	"variables change for what is started then":   {"environ TestReload"},
	"one bad variable does not cost the others":   {"environ TestOverflow", "environ TestReload"},
	"a directory that a tool makes can be entered": {
		"tool TestFileTools",
	},
	"tools answer each call once":                   {"tool TestToolsInParallel"},
	"a tool that fails says why":                    {"tool TestToolErrors"},
	"a tool answers before proxies lose patience":   {"tool TestToolPatience"},
	"what a caller needs is required in a schema":   {"tool TestTools"},
	"a panic ends one answer, not the agent":        {"serve TestPanicIsContained"},
	"a copy of a sandbox has none of its drives":    {"../../test/e2e TestDrivesOfCopies"},
	"no credential of a drive is in a sandbox":      {"../../test/e2e TestDrives"},
	"what is on a drive can be deleted by its name": {"../../test/e2e TestDrivesByTheAPI", "drive TestServer"},
	"an agent that nobody asks does nothing":        {"../../cmd/doze-agent TestIdle"},
	"nobody reaches what is for the host alone":     {"../../test/e2e TestIsolation"},
	"calls of a drive outlive a sleep of the host":  {"../../test/e2e TestDrivesSleep"},
}

// TestGuarantees: the table above names tests that exist.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	known := map[string]map[string]bool{}
	for guarantee, tests := range guarantees {
		for _, test := range tests {
			dir, name, _ := strings.Cut(test, " ")
			if known[dir] == nil {
				known[dir] = testsIn(t, dir)
			}
			if !known[dir][name] {
				t.Errorf("%s: there is no %s in %s", guarantee, name, dir)
			}
		}
	}
}

// testsIn returns the names of the tests of a directory.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}

// TestNamesAreNoFiles: what callers call processes, uploads and terminals is no
// part of any path, and a name that is used again does not cost the older output.
func TestNamesAreNoFiles(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	around := func() (names []string) {
		err := filepath.WalkDir(filepath.Dir(filepath.Dir(s.Logs)), func(path string, _ os.DirEntry, err error) error {
			if !strings.HasPrefix(path, s.Logs) {
				names = append(names, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := around()
	var pids []string
	for i, name := range []string{"../up", "../../up", "/up", "a/../../up", s.Dir + "/up", "..", ".", "up\n", "same", "same"} {
		p := s.Spawn(t, name, fmt.Sprintf("echo %d", i))
		agenttest.Until(t, name+" ends", func() bool {
			return *agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+p.PID, "").CompletedAt != ""
		})
		pids = append(pids, p.PID)
	}
	for i, pid := range pids {
		if got := agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+pid+"/logs", "").Stdout; got != fmt.Sprintln(i) {
			t.Errorf("process %d wrote %q", i, got)
		}
	}
	s.Look(t, "shell=sh&sessionId=../../up").Enter(t, "exit")
	for _, method := range []string{"PUT", "GET", "POST", "DELETE"} {
		for _, path := range []string{"/part?partNumber=1", "/parts", "/complete", "/abort"} {
			if status, body := s.Call(t, method, "/filesystem-multipart/..%2F..%2Fup"+path, `{"parts":[{"partNumber":1}]}`); status < 400 {
				t.Errorf("%s %s: status %d: %s", method, path, status, body)
			}
		}
	}
	if diff := cmp.Diff(before, around()); diff != "" {
		t.Errorf("files came (-before +after):\n%s", diff)
	}
	files, err := filepath.Glob(s.Logs + "/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no output is kept: %v", err)
	}
	for _, file := range files {
		if strings.Trim(filepath.Base(file), "0123456789") != ".stdout" {
			t.Errorf("output is in %s", file)
		}
	}
}
