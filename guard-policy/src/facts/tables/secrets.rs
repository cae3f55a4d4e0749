//! Commands whose output is a secret (`C-020`). Files that hold secrets are in `secret.rs`.

use guard_common::ActionClass::SecretAccess;

use super::{Row, row};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(SecretAccess, "gh", "auth token, auth status -t, auth status --show-token", "prints the forge's token", "gh auth token", "gh auth status"),
    row(SecretAccess, "glab tea", "auth status -t, auth status --show-token, config get token, login list", "prints the forge's token", "glab config get token", "glab auth status"),
    row(SecretAccess, "git", "credential fill, credential-store get, credential-cache get, credential-libsecret get, credential-manager get", "prints a password that git keeps", "git credential fill", "git credential approve"),
    row(SecretAccess, "git-credential-* docker-credential-*", "get, list, fill", "prints a password that is kept", "docker-credential-pass get", "docker-credential-pass version"),
    row(SecretAccess, "aws", "configure get, configure export-credentials, sts get-session-token, sts assume-role, sts get-federation-token, ecr get-login-password, eks get-token, iam create-access-key, codeartifact get-authorization-token", "prints credentials", "aws --profile x configure get y", "aws configure list"),
    row(SecretAccess, "aws", "secretsmanager get-secret-value, secretsmanager batch-get-secret-value, ssm get-parameter, ssm get-parameters, ssm get-parameters-by-path, kms decrypt", "reads a secret store", "aws ssm get-parameter", "aws ssm describe-parameters"),
    row(SecretAccess, "gcloud", "auth print-access-token, auth print-identity-token, auth print-refresh-token, auth application-default print-access-token, secrets versions access, iam service-accounts keys create", "prints credentials", "gcloud auth print-access-token", "gcloud auth list"),
    row(SecretAccess, "az", "account get-access-token, keyvault secret show, keyvault secret download, acr login --expose-token, ad sp create-for-rbac", "prints credentials", "az keyvault secret show", "az account show"),
    row(SecretAccess, "kubectl oc", "get secret, get secrets, describe secret, describe secrets, create token, config view --raw, whoami -t", "prints a cluster's secrets", "kubectl -n x get secret y", "kubectl get pods"),
    row(SecretAccess, "vault bao", "read, kv get, print token, token lookup, token create, unwrap, login", "reads a secret store", "vault kv get x", "vault status"),
    row(SecretAccess, "op", "read, item get, document get, inject, run, signin", "reads a password manager", "op read x", "op vault list"),
    row(SecretAccess, "bw rbw lpass keepassxc-cli dashlane dcli enpass-cli", "get, show, list, export, search, login, unlock, clip, p, n", "reads a password manager", "bw get x", "bw status"),
    row(SecretAccess, "pass gopass", "., show, otp, git, grep, cat, edit, export", "reads the password store", "pass show x", "pass ls"),
    row(SecretAccess, "secret-tool", "lookup, search", "reads the desktop's keyring", "secret-tool lookup x", "secret-tool store x"),
    row(SecretAccess, "keyring", "get", "reads the desktop's keyring", "keyring get x", "keyring diagnose"),
    row(SecretAccess, "kwallet-query kwalletcli", "", "reads the desktop's keyring", "kwallet-query x", ""),
    row(SecretAccess, "keyctl", "read, print, pipe, dh_compute, pkey_decrypt, pkey_sign", "reads the kernel's keyring", "keyctl print x", "keyctl show"),
    row(SecretAccess, "security", "find-generic-password, find-internet-password, dump-keychain, export", "reads the keychain", "security dump-keychain", "security list-keychains"),
    row(SecretAccess, "gpg gpg2", "-d, --decrypt, --export-secret-keys, --export-secret-subkeys, --export-ssh-key", "decrypts, or prints a private key", "gpg -d x", "gpg --verify x"),
    row(SecretAccess, "age rage sops", "-d, --decrypt, decrypt, exec-env, exec-file, -i", "decrypts", "sops -d x", "sops --version"),
    row(SecretAccess, "ansible-vault", "view, decrypt, edit", "decrypts", "ansible-vault view x", "ansible-vault encrypt x"),
    row(SecretAccess, "systemd-creds", "cat, decrypt", "decrypts a unit's credential", "systemd-creds cat x", "systemd-creds list"),
    row(SecretAccess, "doppler infisical chamber envkey berglas teller", "", "reads a secret store", "doppler run x", ""),
    row(SecretAccess, "heroku", "auth:token, config, config:get", "prints a service's token or its settings", "heroku auth:token", "heroku ps"),
    row(SecretAccess, "fly flyctl", "auth token, tokens create", "prints a service's token", "fly auth token", "fly status"),
    row(SecretAccess, "vercel netlify railway", "env pull, env:get, env:list, variables", "prints settings, tokens among them", "vercel env pull", "vercel ls"),
    row(SecretAccess, "terraform tofu pulumi", "output, state pull, config get, stack output, stack export", "prints what a deployment holds, passwords among it", "terraform output", "terraform validate"),
    row(SecretAccess, "npm", "token list, token create, config get, config list, get", "prints settings, tokens among them", "npm config get x", "npm ping"),
    row(SecretAccess, "ssh-keygen", "-y, -p", "reads a private key", "ssh-keygen -y", "ssh-keygen -l"),
    row(SecretAccess, "ssh-add", ". !-l !-L, ?", "takes private keys into the agent", "ssh-add x", "ssh-add -l"),
];
