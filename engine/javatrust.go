package engine

import (
	"bytes"
	"crypto/sha1"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"unicode/utf16"
)

// javaTrust is where Debian's Java looks for what it trusts; others are told by [javaOptions].
const javaTrust = "/etc/ssl/certs/java/cacerts"

// javaPassword is what every Java takes for the password of such a file. It protects nothing: the certificates are public.
const javaPassword = "changeit"

// javaOptions make Java trust the proxy and use it: it reads none of the usual variables.
const javaOptions = "-Djavax.net.ssl.trustStore=" + javaTrust + " -Djavax.net.ssl.trustStorePassword=" + javaPassword +
	" -Dhttp.proxyHost=gateway.docker.internal -Dhttp.proxyPort=3128 -Dhttps.proxyHost=gateway.docker.internal -Dhttps.proxyPort=3128" +
	" -Dhttp.nonProxyHosts=localhost|127.*|[::1]|gateway.docker.internal"

// javaKeyStore puts the certificates of a PEM bundle into Java's own format (JKS, version 2), which every Java reads and
// the others of its formats do not: PKCS 12 as old and new ones expect it differs.
func javaKeyStore(bundle []byte) []byte {
	var entries bytes.Buffer
	text := func(s string) {
		binary.Write(&entries, binary.BigEndian, uint16(len(s)))
		entries.WriteString(s)
	}
	n := uint32(0)
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		// No more than this is looked at: parsing a system's certificates would be a tenth of the time that a sandbox takes.
		rest, err := asn1.Unmarshal(block.Bytes, new(asn1.RawValue))
		if block.Type != "CERTIFICATE" || err != nil || len(rest) > 0 {
			continue // Java would not take it, and with it none
		}
		n++
		binary.Write(&entries, binary.BigEndian, uint32(2)) // a trusted certificate
		text(fmt.Sprintf("ca%d", n))
		binary.Write(&entries, binary.BigEndian, uint64(0)) // when it was added
		text("X.509")
		binary.Write(&entries, binary.BigEndian, uint32(len(block.Bytes)))
		entries.Write(block.Bytes)
	}
	out := binary.BigEndian.AppendUint32(nil, 0xfeedfeed)
	out = binary.BigEndian.AppendUint32(out, 2)
	out = binary.BigEndian.AppendUint32(out, n)
	out = append(out, entries.Bytes()...)
	var seal []byte // over the password, the format's own word, and all before
	for _, u := range utf16.Encode([]rune(javaPassword)) {
		seal = binary.BigEndian.AppendUint16(seal, u)
	}
	sum := sha1.Sum(append(append(seal, "Mighty Aphrodite"...), out...))
	return append(out, sum[:]...)
}
