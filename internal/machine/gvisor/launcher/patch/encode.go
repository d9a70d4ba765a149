package patch

// uncompressed is the file with the reader of states.
const uncompressed = "pkg/compressio/nocompressio.go" //nolint:misspell // it is called so

// encodeEdits make the encoder and the decoder of gVisor's state faster. What they write and
// read is the same, byte for byte.
var encodeEdits = []edit{
	// The encodings of structs are kept so that none is made twice: an object that contains
	// others may be found after them. Only such an object looks for them, and only what it
	// can contain is kept. Without these edits, each struct within a struct is looked for
	// and kept.
	{"pkg/state/encode.go", `	// stoppable says that saveStop ends the encoding.
`, `	// covers says that the object at hand took the place of others, whose structs
	// may be encoded already.
	covers bool

	// nested says that what is encoded is part of a struct, and so can have no
	// encoding of its own that counts.
	nested bool

	// stoppable says that saveStop ends the encoding.
`},
	{"pkg/state/encode.go", `	// refs are the list of reference objects used by other objects
`, `	// covers says that the object took the place of others.
	covers bool

	// refs are the list of reference objects used by other objects
`},
	{"pkg/state/encode.go", `			// Reuse the root ID of the first contained element.
			id:  existing.id,
			obj: obj,
`, `			// Reuse the root ID of the first contained element.
			id:     existing.id,
			obj:    obj,
			covers: true,
`},
	{"pkg/state/encode.go", `	if s, ok := es.encodedStructs[obj]; ok {
		*dest = s
		return
	}
	s := &wire.Struct{}
	*dest = s
	es.encodedStructs[obj] = s
`, `	copied := !obj.CanAddr() // two interfaces can share one
	if copied || es.covers {
		if s, ok := es.encodedStructs[obj]; ok {
			*dest = s
			return
		}
	}
	s := &wire.Struct{}
	*dest = s
	if copied || !es.nested {
		es.encodedStructs[obj] = s
	}
	defer func(was bool) { es.nested = was }(es.nested)
	es.nested = true
`},
	{"pkg/state/encode.go", `			es.encodeObject(oes.obj, oes.how, &oes.encoded)
`, `			es.covers, es.nested = oes.covers, false
			es.encodeObject(oes.obj, oes.how, &oes.encoded)
`},

	// Bytes are an array of numbers, each of which was an object: those of a thread's
	// registers are 11,000, on some processors.
	{"pkg/state/encode.go", `	l := obj.Len()
	a := &wire.Array{
`, `	if l := obj.Len(); l > 0 && obj.Type().Elem().Kind() == reflect.Uint8 && obj.CanAddr() {
		*dest = &wire.Array{Bytes: append([]byte(nil), obj.Bytes()...)}
		return
	}
	l := obj.Len()
	a := &wire.Array{
`},
	{"pkg/state/decode.go", `	if len(encoded.Contents) != obj.Len() {
`, `	if bytes := encoded.Bytes; bytes != nil && len(bytes) == obj.Len() {
		if obj.Type().Elem().Kind() == reflect.Uint8 && obj.CanAddr() {
			copy(obj.Bytes(), bytes)
			return
		}
		for i, b := range bytes {
			ds.decodeObject(ods, obj.Index(i), wire.Uint(b))
		}
		return
	}
	if len(encoded.Contents) != obj.Len() {
`},
	{"pkg/state/wire/wire.go", `type Array struct {
	Contents []Object
}
`, `type Array struct {
	Contents []Object

	// Bytes are the contents, if all of them are of type Uint and below 256.
	Bytes []byte
}

// Objects returns the contents.
func (a *Array) Objects() []Object {
	if a.Bytes == nil {
		return a.Contents
	}
	contents := make([]Object, len(a.Bytes))
	for i, b := range a.Bytes {
		contents[i] = Uint(b)
	}
	return contents
}
`},
	{"pkg/state/wire/wire.go", `	contents := make([]Object, l)
	v := Load(r)
	contents[0] = v
	for i := 1; i < int(l); i++ {
		contents[i] = v.load(r)
	}
`, `	v := Load(r)
	if first, ok := v.(Uint); ok && first < 256 {
		return loadUints(r, l, first)
	}
	contents := make([]Object, l)
	contents[0] = v
	for i := 1; i < int(l); i++ {
		contents[i] = v.load(r)
	}
`},
	{"pkg/state/wire/wire.go", `// save implements Object.save.
func (a *Array) save(w *Writer) {
	l := Uint(len(a.Contents))
`, `// loadUints loads an array of l numbers, of which the first was loaded.
func loadUints(r *Reader, l, first Uint) Array {
	bytes := make([]byte, l)
	bytes[0] = byte(first)
	for i := 1; i < int(l); i++ {
		u := loadUint(r)
		if u < 256 {
			bytes[i] = byte(u)
			continue
		}
		contents := make([]Object, l)
		for j, b := range bytes[:i] {
			contents[j] = Uint(b)
		}
		contents[i] = u
		for i++; i < int(l); i++ {
			contents[i] = loadUint(r)
		}
		return Array{Contents: contents}
	}
	return Array{Bytes: bytes}
}

// saveBytes is save for contents that are bytes.
func (a *Array) saveBytes(w *Writer) {
	Uint(len(a.Bytes)).save(w)
	Save(w, Uint(a.Bytes[0]))
	var buf [256]byte // of numbers as Uint.save writes them
	n := 0
	for _, b := range a.Bytes[1:] {
		if n+2 > len(buf) {
			if _, err := w.Write(buf[:n]); err != nil {
				panic(err)
			}
			n = 0
		}
		if b >= 0x80 {
			buf[n], b = b, 1
			n++
		}
		buf[n] = b
		n++
	}
	if _, err := w.Write(buf[:n]); err != nil {
		panic(err)
	}
}

// save implements Object.save.
func (a *Array) save(w *Writer) {
	if len(a.Bytes) > 0 {
		a.saveBytes(w)
		return
	}
	l := Uint(len(a.Contents))
`},
	{"pkg/state/pretty/pretty.go", `	case *wire.Array:
`, `	case *wire.Array:
		x = &wire.Array{Contents: x.Objects()}
`},

	// Objects are read by one goroutine and made by another: each has about half of the work.
	{"pkg/state/decode.go", `		for i := uint64(0); i < numObjects; {
			// Unmarshal either a type object or object ID.
			encoded = wire.Load(&ds.r)
`, `		next, stop := ds.readAhead(numObjects)
		defer stop()
		for i := uint64(0); i < numObjects; {
			// Unmarshal either a type object or object ID.
			encoded = next()
`},
	{"pkg/state/decode.go", `				// Unmarshal and resolve the actual object.
				encoded = wire.Load(&ds.r)
`, `				// Unmarshal and resolve the actual object.
				encoded = next()
`},
	{"pkg/state/decode.go", `// Load deserializes the object graph rooted at obj.
`, `// readBatch is how many objects are handed over at once, and readBatches how often that may
// be ahead of the use of them.
const readBatch, readBatches = 64, 16

// readAhead reads a number of objects, their IDs, and the types between them, in order. What
// next returns was loaded before. It panics as wire.Load does, and stop ends the reading.
func (ds *decodeState) readAhead(objects uint64) (next func() wire.Object, stop func()) {
	batches, over := make(chan []wire.Object, readBatches), make(chan struct{})
	var failed error // set before batches is closed
	go func() {
		defer close(batches)
		batch := make([]wire.Object, 0, readBatch)
		send := func() bool {
			select {
			case batches <- batch:
				batch = make([]wire.Object, 0, readBatch)
				return true
			case <-over:
				return false
			}
		}
		failed = safely(func() {
			for i := uint64(0); i < objects; {
				o := wire.Load(&ds.r)
				batch = append(batch, o)
				if _, ok := o.(wire.Uint); ok {
					batch = append(batch, wire.Load(&ds.r))
					i++
				}
				if len(batch) >= readBatch-1 && !send() {
					return
				}
			}
		})
		send() // what was read before an error is used first
	}()
	var have []wire.Object
	next = func() wire.Object {
		for len(have) == 0 {
			batch, more := <-batches
			if !more && failed == nil {
				Failf("there is no other object")
			}
			if !more {
				panic(failed)
			}
			have = batch
		}
		o := have[0]
		have = have[1:]
		return o
	}
	return next, func() {
		close(over)
		for range batches { // it reads for as long as its reader lets it
		}
	}
}

// Load deserializes the object graph rooted at obj.
`},

	// Numbers are read byte by byte.
	{"pkg/state/wire/wire.go", `	io.Reader

	buf [1]byte
}
`, `	io.Reader

	// Bytes is the same reader, if it can read a byte.
	Bytes io.ByteReader

	buf [1]byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) Reader {
	bytes, _ := r.(io.ByteReader)
	return Reader{Reader: r, Bytes: bytes}
}
`},
	{"pkg/state/wire/wire.go", `	n, err := r.Read(r.buf[:])
	if n != 1 {
`, `	if r.Bytes != nil {
		b, err := r.Bytes.ReadByte()
		if err != nil {
			panic(err)
		}
		return b
	}
	n, err := r.Read(r.buf[:])
	if n != 1 {
`},
	{"pkg/state/state.go", `		r:        wire.Reader{Reader: r},
`, `		r:        wire.NewReader(r),
`},
	{uncompressed, `// Close implements io.Closer.Close.
func (r *SimpleReader) Close() error {
`, `// ReadByte implements io.ByteReader.ReadByte.
func (r *SimpleReader) ReadByte() (byte, error) {
	if r.h == nil {
		return r.bin.ReadByte()
	}
	var one [1]byte
	_, err := io.ReadFull(r, one[:])
	return one[0], err
}

// Close implements io.Closer.Close.
func (r *SimpleReader) Close() error {
`},

	// The time for each type of object is of no use to us, and asking for it takes a tenth
	// of the decoding.
	{"pkg/state/encode.go", `	es.stats.start(te.ID)
	defer es.stats.done()
`, ``},
	{"pkg/state/decode.go", `	ds.stats.start(ods.typ)
	defer ds.stats.done()
	if sl, ok`, `	if sl, ok`},
	{"pkg/state/decode.go", `	// Track stats if relevant.
	if ods.callbacks != nil && ods.typ != 0 {
		ds.stats.start(ods.typ)
		defer ds.stats.done()
	}

`, ``},
}
