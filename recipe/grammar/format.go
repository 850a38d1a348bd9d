package grammar

// formats are regular expressions of the values of the format keyword that are enforced, from RFC 3339 (dates and times), RFC 5321 (the
// common form of addresses), RFC 1123 (host names), RFC 2673 and 4291 (IP addresses), RFC 9562 (UUID) and RFC 3986 (URI).
var formats = map[string]string{
	"date":      formatDate,
	"time":      formatTime,
	"date-time": formatDate + `[Tt]` + formatTime,
	"email":     `[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+)*@` + formatHost,
	"hostname":  formatHost,
	"ipv4":      formatIPv4,
	"ipv6": `((` + h16 + `:){7}` + h16 + `|(` + h16 + `:){6}` + formatIPv4 +
		`|::(` + h16 + `(:` + h16 + `){0,6})?|::(` + h16 + `:){0,5}` + formatIPv4 +
		`|(` + h16 + `:){1,7}:` +
		`|(` + h16 + `:){1}(:` + h16 + `){1,6}|(` + h16 + `:){2}(:` + h16 + `){1,5}|(` + h16 + `:){3}(:` + h16 + `){1,4}` +
		`|(` + h16 + `:){4}(:` + h16 + `){1,3}|(` + h16 + `:){5}(:` + h16 + `){1,2}|(` + h16 + `:){6}:` + h16 + `)`,
	"uuid": `[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`,
	"uri":  `[A-Za-z][A-Za-z0-9+.-]*:(//` + uriAuthority + `(/` + uriChar + `*)*|/?(` + uriChar + `+(/` + uriChar + `*)*)?)(\?(` + uriChar + `|[/?])*)?(#(` + uriChar + `|[/?])*)?`,
}

const (
	// February has 29 days in years divisible by 4, but not by 100 unless by 400.
	formatDate = `(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))` +
		`|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)`
	formatTime   = `([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)`
	formatLabel  = `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	formatHost   = formatLabel + `(\.` + formatLabel + `)*`
	octet        = `(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
	formatIPv4   = octet + `\.` + octet + `\.` + octet + `\.` + octet
	h16          = `[0-9A-Fa-f]{1,4}`
	uriChar      = `([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})`
	uriAuthority = `(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(:\d{1,5})?`
)
