package main

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/dozehq/doze/builder/engine"
)

// A row is a Dockerfile, of which BuildKit with runc and our steps must make the same.
type row struct {
	dockerfile string
	files      map[string]string
	build      buildapi.Build
	lacks      []string // files that the image must not have
	has        []string // files that it must have
}

// matrix is the table.
var matrix = map[string]row{
	"stages": {dockerfile: `ARG BASE=busybox:1
FROM ${BASE} AS one
ARG WHO=nobody
ENV A=b PATH=$PATH:/more
WORKDIR /app/deep
RUN echo "who=$WHO A=$A pwd=$PWD home=$HOME pid=$$" > out; id > id; ls -la /proc/self/fd > /dev/null
RUN chmod 1777 /tmp; echo x > /tmp/x; mkdir -p /tmp/dd
FROM one AS unused
RUN exit 9
FROM busybox:1
COPY --from=one /app /app
COPY --from=0 --link /tmp/x /linked/x
COPY --from=one --chown=7:9 --chmod=0640 /tmp/x /owned/x
COPY --from=busybox:1 /etc/passwd /etc/passwd.again
RUN ls -lanR /app /linked /owned > /list; rm /list
EXPOSE 80 53/udp
VOLUME /data /more
ENTRYPOINT ["/bin/sh"]
CMD ["-c", "true"]
`, build: buildapi.Build{Args: map[string]string{"WHO": "somebody"}}, has: []string{"/app/deep/out", "/linked/x", "/owned/x"}, lacks: []string{"/tmp/x", "/list"}},
	"heredocs": {dockerfile: `# syntax=docker/dockerfile:1
FROM busybox:1
RUN <<EOF
set -e
echo heredoc > /h
umask 077; mkdir -p /private/dir
EOF
RUN <<EOF sh -e
echo named > /n
EOF
COPY --chown=1000:1000 --chmod=640 <<-"EOT" /inline.txt
	inline $NOEXPAND
EOT
ARG X=expanded
COPY <<a <<b /two/
$X
a
b's
b
`, has: []string{"/h", "/n", "/inline.txt", "/two/a", "/two/b"}},
	"mounts": {
		dockerfile: `FROM busybox:1
RUN --mount=type=cache,target=/cache echo cached >> /cache/n; cat /cache/n > /one
RUN --mount=type=cache,target=/cache echo again >> /cache/n; cat /cache/n > /two
RUN --mount=type=cache,target=/private,id=p,sharing=locked,mode=0700,uid=7,gid=8 stat -c '%u:%g %a' /private > /stat
RUN --mount=type=secret,id=tok cat /run/secrets/tok | wc -c > /length; stat -c '%a %u' /run/secrets/tok >> /length
RUN --mount=type=secret,id=tok,target=/etc/tok,mode=0444,uid=7 stat -c '%a %u' /etc/tok > /mode
RUN --mount=type=secret,id=tok,env=TOK echo ${#TOK} > /env
RUN --mount=type=secret,id=none sh -c 'ls /run/secrets > /nosecret 2>&1; true'
RUN --mount=type=tmpfs,target=/scratch,size=1m echo y > /scratch/y; mount | grep -c scratch > /tmpfs
RUN --mount=type=bind,source=src,target=/ctx ls /ctx > /ctxlist; touch /ctx/no 2> /dev/null || echo refused >> /ctxlist
RUN --mount=type=bind,source=src,target=/ctx,rw touch /ctx/yes && ls /ctx > /rwlist
RUN --mount=type=bind,from=busybox:1,source=/etc,target=/other ls /other > /otherlist
RUN --mount=type=bind,source=src/a,target=/deep/er/file cat /deep/er/file > /filecopy
RUN --network=none sed 1,2d /proc/net/dev | cut -d: -f1 > /net; wget -T 1 -q -O /dev/null http://192.0.2.1 2>/dev/null || echo down >> /net
`, files: map[string]string{"src/a": "a\n", "src/b": "b\n"}, build: buildapi.Build{Secrets: map[string]string{"tok": "hunter2hunter2"}},
		has:   []string{"/two", "/length", "/env"},
		lacks: []string{"/cache/n", "/run/secrets", "/run/secrets/tok", "/etc/tok", "/scratch", "/ctx", "/ctx/yes", "/other", "/deep/er/file"},
	},
	"users": {dockerfile: `FROM busybox:1
USER 1000:1000
RUN id > /tmp/id; touch /tmp/mine; echo $HOME > /tmp/home; grep Cap /proc/self/status > /tmp/caps
WORKDIR /home/work
USER ann
RUN id > /tmp/ann; echo $HOME >> /tmp/ann; cd; touch file; chmod 4711 file
USER ann:staff
RUN touch /tmp/staff
USER root
RUN grep -E 'Cap|NoNew' /proc/self/status > /rootcaps; umask > /umask
SHELL ["/bin/sh", "-ec"]
RUN echo shell ok > /shell; false || true
COPY --chown=ann:staff src /src
COPY --chown=ann src /src2
`, files: map[string]string{"src/a": "a\n"}, has: []string{"/tmp/mine", "/home/ann/file", "/src/a"}},
	"onbuild": {dockerfile: `FROM busybox:1 AS parent
ONBUILD RUN echo onbuild > /onbuild
ONBUILD COPY src/a /from-onbuild
FROM parent
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5s --timeout=3s --retries=2 CMD true
LABEL one=1 two="t w o"
`, files: map[string]string{"src/a": "a\n"}, has: []string{"/onbuild", "/from-onbuild"}},
	"ignore": {
		dockerfile: `FROM busybox:1
COPY . /all/
COPY --exclude=*.md src /excluded/
COPY --parents src/deep/*.txt /parents/
COPY *.txt link* /globs/
COPY src/deep/ src/a /flat/
COPY src/a /renamed
COPY --chmod=0700 src/run.sh /bin/run.sh
RUN run.sh
`, files: map[string]string{
			".dockerignore": "# comment\n**/*.log\nsecret\n!src/wanted.log\n", "a.txt": "a", "b.txt": "b", "x.log": "x", "secret/key": "k", "src/a": "a",
			"src/wanted.log": "l", "src/x.md": "m", "src/deep/t.txt": "t", "src/deep/u.txt": "u", "src/run.sh": "#!/bin/sh\necho ran > /ran\n",
			"link -> a.txt": "", "dangling -> /none": "", "empty/": "",
		}, has: []string{"/all/src/wanted.log", "/all/dangling", "/all/empty", "/ran", "/parents/src/deep/t.txt", "/flat/t.txt"},
		lacks: []string{"/all/x.log", "/all/secret/key", "/excluded/x.md"},
	},
	"archives": {
		dockerfile: `FROM busybox:1
RUN --mount=type=bind,source=src,target=/src cd /src && tar -czf /a.tgz . && mkdir /c
FROM busybox:1
COPY --from=0 /a.tgz /copied.tgz
ADD local.tar /added/
ADD --chown=7:8 plain.txt /plain/
RUN tar -xzf /copied.tgz -C /tmp && rm /copied.tgz
`, files: map[string]string{"src/a": "a\n", "src/b/c": "c\n", "plain.txt": "p", "local.tar": localTar},
		has: []string{"/added/in.txt", "/plain/plain.txt", "/tmp/b/c"}, lacks: []string{"/added/local.tar", "/copied.tgz"},
	},
	"odd files": {
		dockerfile: `FROM busybox:1
RUN --mount=type=bind,source=test,target=/test <<EOF
set -ex
mkdir -p /d/a/b; echo 1 > /d/a/b/f; ln /d/a/b/f /d/hard; mkfifo /d/fifo; chown -h 7:8 /d/fifo
mknod /d/null c 1 3; mknod -m 600 /d/full c 1 7
cp /bin/busybox /d/bb; /test tool setcap /d/bb
echo old > /d/old; /test tool times /d/old; cp -p /d/old /d/stays
ln -s nowhere /d/dangling; chown -h 7:8 /d/dangling
touch "/d/with space" "/d/ünï" '/d/back\slash'
mkdir -m 2775 /d/sgid; mkdir -m 1777 /d/sticky; touch /d/suid; chmod 6755 /d/suid
EOF
RUN <<EOF
set -ex
rm -rf /d/a; mkdir /d/a; echo 2 > /d/a/new
rm /etc/group; mv /home /moved; rm /d/old; rm -rf /var/lib; ln -s /tmp /var/lib
chmod 700 /root; touch /d/hard
EOF
RUN rm -rf /moved && mkdir -p /moved/again
`, files: map[string]string{"test": testProgram},
		has: []string{"/d/bb", "/d/fifo", "/d/null", "/d/stays", "/d/a/new", "/moved/again"}, lacks: []string{"/d/a/b", "/etc/group", "/d/old", "/moved/ann", "/test"},
	},
	"links": {dockerfile: `FROM busybox:1
RUN ln -s /elsewhere /here; mkdir /elsewhere; ln -s ../../../../../../etc /up
WORKDIR /here/below
RUN pwd > where
RUN --mount=type=cache,target=/here/cache touch /here/cache/x; ls /elsewhere > /listing
RUN --mount=type=bind,source=src,target=/up/bound ls /etc/bound > /boundlist
COPY src/a /here/copied
COPY src /up/copied/
`, files: map[string]string{"src/a": "a\n"}, has: []string{"/elsewhere/below/where", "/elsewhere/copied", "/etc/copied/a"}},
	"the agent": {dockerfile: `FROM busybox:1
COPY --from=ghcr.io/blaxel-ai/sandbox:latest /sandbox-api /usr/local/bin/sandbox-api
RUN /usr/local/bin/sandbox-api
ENTRYPOINT ["/usr/local/bin/sandbox-api"]
`, has: []string{"/usr/local/bin/sandbox-api"}},
	"a target": {dockerfile: `FROM busybox:1 AS first
RUN echo first > /first
FROM busybox:1 AS second
RUN exit 1
`, build: buildapi.Build{Target: "first", Labels: map[string]string{"of": "the order"}}, has: []string{"/first"}},
	"another name": {
		dockerfile: "FROM busybox:1\nRUN exit 1\n", files: map[string]string{"d/other.Dockerfile": "FROM busybox:1\nCOPY x /x\n", "x": "x"},
		build: buildapi.Build{Dockerfile: "d/other.Dockerfile"}, has: []string{"/x"},
	},
}

// record is a file for what runc makes of the table, and compareWith is such a file. So a kernel
// on which runc does not run is compared with one where it does.
var (
	record      = flag.String("record", "", "write what runc makes of the matrix to a `file`")
	compareWith = flag.String("compare-with", "", "compare with what runc made: a `file` of -record")
)

// records is what such a file has.
type records struct {
	Base   []byte // the layout of the base
	Began  time.Time
	Images map[string]made
}

// made is what came of a row.
type made struct {
	Files  map[string]file
	Config string
	Layers int
}

// recorded reads what runc made.
func recorded(t *testing.T) (all records) {
	t.Helper()
	raw, err := os.ReadFile(*compareWith)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// reference returns what runc makes of a row, and when it began.
func reference(t *testing.T) (began time.Time, of func(t *testing.T, o engine.Order) made) {
	t.Helper()
	if *compareWith != "" {
		all := recorded(t)
		return all.Began, func(t *testing.T, o engine.Order) made {
			t.Helper()
			m, ok := all.Images[o.ID]
			if !ok {
				t.Fatalf("there is no record of %s", o.ID)
			}
			return m
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("it needs runc: make deps-test")
	}
	theirs := open(t, runc)
	theirs.base(t)
	began = time.Now().Add(-time.Second)
	all := records{Base: baseLayout, Began: began, Images: map[string]made{}}
	t.Cleanup(func() {
		if *record == "" {
			return
		}
		raw, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(*record, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	return began, func(t *testing.T, o engine.Order) made {
		t.Helper()
		m := result(t, theirs, o)
		all.Images[o.ID] = m
		return m
	}
}

// TestMatrix: our steps make of each Dockerfile what BuildKit makes of it with runc: the same
// files with the same modes, owners, times, extended attributes and bytes, and the same
// configuration.
func TestMatrix(t *testing.T) {
	needRoot(t)
	began, theirs := reference(t)
	ours := open(t, "")
	names := ours.base(t)
	for _, name := range slices.Sorted(maps.Keys(matrix)) {
		r := matrix[name]
		t.Run(name, func(t *testing.T) {
			o := order(t, strings.ReplaceAll(name, " ", "-"), r.dockerfile, r.files)
			r.build.ID, r.build.Context, r.build.Names = o.ID, o.Context, names
			o.Build = r.build
			want, got := theirs(t, o), result(t, ours, o)
			compare(t, began, want, got)
			for _, f := range r.has {
				if _, ok := got.Files[f]; !ok {
					t.Errorf("it lacks %s", f)
				}
			}
			for _, f := range r.lacks {
				if _, ok := got.Files[f]; ok {
					t.Errorf("it has %s", f)
				}
			}
			if diff := cmp.Diff(want.Config, got.Config); diff != "" {
				t.Errorf("the configuration: %s", diff)
			}
		})
	}
}

// result builds with an engine, and reads what it made.
func result(t *testing.T, b *bench, o engine.Order) made {
	t.Helper()
	b.must(t, o)
	img := b.read(t, o.ID)
	return made{Files: img.files, Config: sparse(img.config), Layers: len(img.layers)}
}

// compare compares two images file by file. A time of this test is not the same in both, but
// it is of this test in both.
func compare(t *testing.T, began time.Time, want, got made) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want.Files)) {
		w, g := want.Files[name], got.Files[name]
		if w.Time.After(began) && g.Time.After(began) {
			w.Time, g.Time = time.Time{}, time.Time{}
		}
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got.Files)) {
		if _, ok := want.Files[name]; !ok {
			t.Errorf("%s is only in ours: %+v", name, got.Files[name])
		}
	}
	if want.Layers != got.Layers {
		t.Errorf("%d layers, and not %d", got.Layers, want.Layers)
	}
}

// sparse is a configuration without what differs from build to build.
func sparse(config ocispec.Image) string {
	config.Created, config.RootFS = nil, ocispec.RootFS{}
	for i := range config.History {
		config.History[i].Created = nil
	}
	raw, err := json.MarshalIndent(config, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
