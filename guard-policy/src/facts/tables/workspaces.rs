//! What changes the structure of a workspace: repositories, agents (`C-023`). Git's own commands are in `git.rs`.

use guard_common::ActionClass::WorkspaceMutation;

use super::{Row, row};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(WorkspaceMutation, "gh", "repo create, repo fork, repo delete, repo rename, repo archive, repo unarchive, repo edit, repo clone, repo sync, repo set-default, repo deploy-key add, repo deploy-key delete, ruleset", "makes, moves or ends a repository", "gh repo fork", "gh repo view"),
    row(WorkspaceMutation, "glab", "repo create, repo fork, repo delete, repo transfer, repo archive, repo clone", "makes, moves or ends a repository", "glab repo fork", "glab repo view"),
    row(WorkspaceMutation, "hub", "create, fork, delete, clone, init", "makes, moves or ends a repository", "hub fork", "hub browse"),
    row(WorkspaceMutation, "tea", "repos create, repos fork, repos migrate, repos delete, clone", "makes, moves or ends a repository", "tea repos create", "tea repos list"),
    row(WorkspaceMutation, "gh", "secret set, secret delete, variable set, variable delete, workflow run, workflow enable, workflow disable, run rerun, run cancel, run delete, cache delete, ssh-key add, ssh-key delete, gpg-key add, gpg-key delete, auth login, auth logout, auth refresh, auth setup-git", "changes what runs for a repository, or who may reach it", "gh workflow run x", "gh workflow list"),
    row(WorkspaceMutation, "glab", "variable set, variable delete, variable update, ci run, ci trigger, ci retry, ci delete, schedule create, schedule delete, ssh-key add, deploy-key add, auth login", "changes what runs for a repository, or who may reach it", "glab ci run", "glab ci list"),
    row(WorkspaceMutation, "scalar repo", "clone, register, unregister, delete, init, sync", "makes or ends repositories", "scalar clone x", "scalar list"),
    row(WorkspaceMutation, "jj", "git init, git clone, workspace add, workspace forget, git remote add, git remote set-url, git remote remove, config set, config edit", "makes repositories, or moves their remotes", "jj workspace add x", "jj workspace list"),
];
