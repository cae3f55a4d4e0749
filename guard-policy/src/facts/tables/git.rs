//! Git's own commands (`C-013`, `C-018`, `C-023`). Their arguments are read in [`git`](crate::facts::git) first:
//! global options are gone, and an alias that the command itself defines is expanded.

use guard_common::ActionClass::{GitCommit, GitPush, WorkspaceMutation};

use super::{Row, row};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(GitPush, "git", "push", "publishes commits", "git -C x -c a.b=c push", "git stash push"),
    row(GitPush, "git", "send-pack, http-push", "what a push runs underneath, or instead of it", "git send-pack ../x main", "git pack-objects x"),
    row(GitPush, "git", "receive-pack", "the other end of a push, which writes the refs", "git receive-pack x", "git upload-pack x"),
    row(GitPush, "git", "subtree push, svn dcommit, p4 submit, lfs push, annex sync, annex push, cvsexportcommit", "pushes by another name", "git subtree push x", "git subtree pull x"),
    row(GitCommit, "git", "commit !--dry-run, commit-tree, citool", "makes a commit", "git commit -m push", "git commit --dry-run"),
    row(GitCommit, "git", "merge !--abort !--no-commit !--quit !--squash, pull !--ff-only, cherry-pick !--abort !--quit !-n !--no-commit, revert !--abort !--quit !-n !--no-commit, rebase !--abort !--quit, am !--abort !--quit", "makes commits from others", "git merge x", "git merge --abort"),
    row(GitCommit, "git", "fast-import, filter-branch, filter-repo, replay, subtree add, subtree merge, subtree split, quiltimport, svn rebase, notes add, notes append, notes edit, notes copy, notes merge, stash create, stash store", "makes commits in bulk or beside the branches", "git notes add x", "git notes list"),
    row(WorkspaceMutation, "git", "clone, init, init-db, worktree add, worktree remove, worktree move, worktree prune, worktree lock, worktree unlock, worktree repair", "makes or ends a repository or a worktree", "git worktree add x", "git worktree list"),
    row(WorkspaceMutation, "git", "submodule add, submodule update, submodule init, submodule deinit, submodule set-url, submodule set-branch, submodule sync, submodule absorbgitdirs, submodule foreach, subtree add, subtree pull", "changes which repositories are in the tree", "git submodule add x", "git submodule status"),
    row(WorkspaceMutation, "git", "remote add, remote rename, remote rm, remote remove, remote set-url, remote set-head, remote set-branches, remote prune", "changes where a push goes", "git remote set-url origin x", "git remote -v"),
    row(WorkspaceMutation, "git", "checkout, switch, reset, restore, stash ., stash push, stash save, stash pop, stash apply, stash drop, stash clear, stash branch, clean !-n !--dry-run, sparse-checkout set, sparse-checkout add, sparse-checkout disable, sparse-checkout init, read-tree, checkout-index, bisect start, bisect good, bisect bad, bisect skip, bisect reset, bisect run", "changes what the worktree holds", "git checkout x", "git clean -n"),
    row(WorkspaceMutation, "git", "merge, rebase, pull, cherry-pick, revert, am, apply !--check !--stat !--numstat, rm !-n !--dry-run, mv !-n !--dry-run", "changes what the worktree holds", "git rebase x", "git apply --check x"),
    row(WorkspaceMutation, "git", "branch -d, branch -D, branch -m, branch -M, branch -c, branch -C, branch -f, branch -u, branch --delete, branch --move, branch --copy, branch --force, branch --set-upstream-to, branch --unset-upstream, branch --edit-description, branch ? !--list !-l !--contains !--no-contains !--merged !--no-merged !--points-at !--format !--sort", "changes branches", "git branch -D x", "git branch --list x"),
    row(WorkspaceMutation, "git", "tag -d, tag -f, tag -a, tag -s, tag --delete, tag --force, tag --annotate, tag --sign, tag ? !--list !-l !-n !--contains !--no-contains !--merged !--no-merged !--points-at !-v !--verify", "changes tags", "git tag v1", "git tag -l v1"),
    row(WorkspaceMutation, "git", "update-ref, symbolic-ref ??, symbolic-ref -d, symbolic-ref --delete, replace, pack-refs, reflog expire, reflog delete, reflog drop, gc, prune, maintenance run, maintenance start, maintenance register, repack, fast-import, filter-branch, filter-repo, update-index, refs migrate", "changes refs, or drops what nothing names", "git update-ref x y", "git symbolic-ref HEAD"),
    row(WorkspaceMutation, "git", "credential approve, credential reject, credential-store store, credential-store erase", "changes kept passwords", "git credential approve", "git credential fill"),
];
