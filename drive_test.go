package doze_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

func TestDriveAllows(t *testing.T) {
	t.Parallel()
	team := map[string]string{"team": "a", "env": "test"}
	ruled := []doze.DrivePermission{
		{Labels: map[string]string{"team": "a"}, Mode: doze.DriveRead, Path: "/"},
		{Labels: map[string]string{"team": "a", "env": "test"}, Mode: doze.DriveReadWrite, Path: "/work/"},
	}
	for name, tt := range map[string]struct {
		rules         []doze.DrivePermission
		labels        map[string]string
		path          string
		reads, writes bool
	}{
		"no rules":              {nil, nil, "/", true, true},
		"no labels":             {ruled, nil, "/work", false, false},
		"another value":         {ruled, map[string]string{"team": "b"}, "/", false, false},
		"one of two labels":     {ruled, map[string]string{"team": "a"}, "/work", true, false},
		"all of it":             {ruled, team, "/", true, false},
		"the part":              {ruled, team, "/work", true, true},
		"below the part":        {ruled, team, "/work/x", true, true},
		"a name like the part":  {ruled, team, "/works", true, false},
		"a rule without labels": {[]doze.DrivePermission{{Mode: doze.DriveRead, Path: "/p"}}, nil, "/p/q", true, false},
		"beside that":           {[]doze.DrivePermission{{Mode: doze.DriveRead, Path: "/p"}}, nil, "/", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := doze.Drive{Spec: doze.DriveSpec{Permissions: tt.rules}}
			if reads, writes := d.Allows(tt.labels, tt.path); reads != tt.reads || writes != tt.writes {
				t.Errorf("it may read: %t, write: %t", reads, writes)
			}
		})
	}
}

func TestDriveMount(t *testing.T) {
	t.Parallel()
	m := doze.DriveMount{Drive: "d", MountPath: "mnt//x/"}
	var p doze.Problems
	if m.Check(&p); len(p) > 0 {
		t.Fatal(p)
	}
	m.Default()
	if m.MountPath != "/mnt/x" || m.DrivePath != "/" {
		t.Errorf("it becomes %+v", m)
	}
	// What is there and cannot be read is not missing.
	p = doze.Problems{"driveName must be a string", "mountPath must be a string"}
	empty := doze.DriveMount{}
	if empty.Check(&p); len(p) != 2 {
		t.Errorf("it says %v", p)
	}
	for name, tt := range map[string]struct {
		m    doze.DriveMount
		says []string
	}{
		"nothing":     {doze.DriveMount{}, []string{"driveName is required", "mountPath is required"}},
		"bad name":    {doze.DriveMount{Drive: "_d", MountPath: "/x"}, []string{"driveName must"}},
		"long":        {doze.DriveMount{Drive: strings.Repeat("d", 129), MountPath: "/" + strings.Repeat("x", 512)}, []string{"at most 128", "at most 512"}},
		"the root":    {doze.DriveMount{Drive: "d", MountPath: "//"}, []string{"another directory than /"}},
		"a way out":   {doze.DriveMount{Drive: "d", MountPath: "/a/../b", DrivePath: "/.."}, []string{"mountPath must have no NUL", "drivePath must have no NUL"}},
		"dots inside": {doze.DriveMount{Drive: "d", MountPath: "/a/b..c"}, []string{"no .. anywhere"}},
		"NUL":         {doze.DriveMount{Drive: "d", MountPath: "/a\x00"}, []string{"no NUL"}},
		"no slash":    {doze.DriveMount{Drive: "d", MountPath: "/a", DrivePath: "b"}, []string{"drivePath must begin"}},
		"bad ids":     {doze.DriveMount{Drive: "d", MountPath: "/a", UIDMap: "root", GIDMap: "4294967296"}, []string{"uidMap is", "gidMap is"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p doze.Problems
			tt.m.Check(&p)
			for _, part := range tt.says {
				if !strings.Contains(strings.Join(p, "; "), part) {
					t.Errorf("it says %v, want %q", p, part)
				}
			}
		})
	}
}

// TestDriveMountPath: what the platform has in a sandbox is taken.
func TestDriveMountPath(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"/.doze/x": "/.doze is reserved", "/var": "/var/log/doze is reserved", "/proc": "/proc is reserved", "proc/x": "/proc is reserved", "/processes": "", "/mnt/proc": "",
	} {
		m := doze.DriveMount{Drive: "d", MountPath: name}
		m.Default()
		err := m.CheckPath()
		if says == "" && err != nil || says != "" && (doze.Public(err).Kind != doze.Conflict || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}
