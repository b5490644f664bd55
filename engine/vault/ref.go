package vault

import (
	"errors"
	"fmt"
	"strings"
)

// ErrRef matches the error of a reference that no password manager we know has.
var ErrRef = errors.New("secret reference")

// RefCommand returns the program that reads what a reference names, its arguments, and the variables of the host that it
// goes by and that are to be remembered with it: 1Password's op for "op://VAULT/ITEM/FIELD", aws for the ARN of a secret in
// AWS Secrets Manager (sbx 0.47). The error matches [ErrRef].
func RefCommand(ref string) (program string, args, env []string, err error) {
	if strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\'' || r == '"' || r == '\\' }) {
		return "", nil, nil, fmt.Errorf("%w: spaces, quotes, backslashes and control characters cannot be in one", ErrRef)
	}
	if path, ok := strings.CutPrefix(ref, "op://"); ok && strings.Count(path, "/") >= 2 {
		return "op", []string{"read", "--no-newline", ref}, []string{"OP_ACCOUNT"}, nil
	}
	// arn:PARTITION:secretsmanager:REGION:ACCOUNT:secret:NAME
	if parts := strings.Split(ref, ":"); len(parts) == 7 && parts[0] == "arn" && parts[2] == "secretsmanager" && parts[3] != "" && parts[5] == "secret" {
		return "aws", []string{"secretsmanager", "get-secret-value", "--region", parts[3], "--secret-id", ref, "--query", "SecretString", "--output", "text"},
			[]string{"AWS_PROFILE"}, nil
	}
	return "", nil, nil, fmt.Errorf("%w: give op://VAULT/ITEM/FIELD or the ARN of a secret in AWS Secrets Manager", ErrRef)
}
