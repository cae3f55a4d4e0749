//! Command lines of forges and trackers (`C-014` … `C-016`). Their `api` commands are read in `forge.rs`.

use guard_common::ActionClass::{GitPush, PrCreate, PrPublish, VendorSyncWrite};

use super::{Row, row};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(PrCreate, "gh", "pr create, pr new", "opens a pull request", "gh -R a/b pr create --fill", "gh pr list"),
    row(PrCreate, "gh", "pr reopen, pr edit, pr update-branch", "changes what the pull request asks for", "gh pr edit 1", "gh pr view 1"),
    row(PrCreate, "glab", "mr create, mr new, mr reopen, mr update, mr for", "opens or changes a merge request", "glab mr create", "glab mr list"),
    row(PrCreate, "hub", "pull-request, compare", "opens a pull request", "hub pull-request", "hub pr list"),
    row(PrCreate, "tea", "pulls create, pull create, pr create, pulls reopen", "opens a pull request", "tea pulls create", "tea pulls list"),
    row(PrCreate, "gt git-town av spr ghstack", "submit, propose, ship, stack submit, pr create, pr, diff, update", "opens pull requests for a stack", "gt submit", "gt log"),
    row(PrCreate, "az", "repos pr create, repos pr update", "opens a pull request", "az repos pr create", "az repos pr list"),
    row(PrCreate, "arc", "diff", "sends a change to review", "arc diff", "arc list"),
    row(PrPublish, "gh", "pr merge, pr review, pr comment, pr ready, pr close, pr lock, pr unlock, pr revert", "merges or speaks for the user", "gh pr merge 1", "gh pr checks 1"),
    row(PrPublish, "glab", "mr merge, mr accept, mr approve, mr revoke, mr note, mr close, mr rebase", "merges or speaks for the user", "glab mr merge 1", "glab mr diff 1"),
    row(PrPublish, "hub", "merge, pr merge", "merges for the user", "hub merge x", "hub pr show"),
    row(PrPublish, "tea", "pulls merge, pulls approve, pulls reject, pulls review, pulls close, pr merge, pr approve, pr reject", "merges or speaks for the user", "tea pulls merge 1", "tea pulls list"),
    row(PrPublish, "az", "repos pr set-vote, repos pr reviewer, repos policy", "merges or votes for the user", "az repos pr set-vote", "az repos show"),
    row(PrPublish, "arc", "land, close-revision", "lands a change", "arc land", "arc which"),
    row(PrPublish, "gt git-town", "merge, ship", "merges a stack", "gt merge", "gt log"),
    row(GitPush, "gh", "release create, release delete, release edit, release upload, release delete-asset, repo sync, repo delete", "writes refs of the repository, or what hangs on them", "gh release create v1", "gh release list"),
    row(GitPush, "glab", "release create, release delete, release upload, repo delete, repo mirror", "writes refs of the repository, or what hangs on them", "glab release create v1", "glab release list"),
    row(GitPush, "hub", "push, release create, release edit, release delete, sync", "pushes", "hub push a,b x", "hub status"),
    row(GitPush, "jj sl hg", "git push, push, cloud sync", "publishes commits from another tool", "jj git push", "jj log"),
    row(GitPush, "svn bzr fossil", "commit, ci, push, import, copy, delete, sync", "a commit goes to the server at once", "svn commit x", "svn status"),
    row(VendorSyncWrite, "gh", "issue create, issue new, issue edit, issue close, issue reopen, issue comment, issue delete, issue develop, issue lock, issue unlock, issue pin, issue unpin, issue transfer", "changes tickets", "gh issue comment 1", "gh issue view 1"),
    row(VendorSyncWrite, "gh", "label create, label edit, label delete, label clone, project create, project edit, project delete, project close, project copy, project item-add, project item-create, project item-edit, project item-delete, project item-archive, project field-create, project field-delete, project link, project unlink, discussion create", "changes what orders tickets", "gh project item-add 1", "gh project list"),
    row(VendorSyncWrite, "glab", "issue create, issue new, issue update, issue close, issue reopen, issue note, issue delete, label create, milestone create, incident close, incident note", "changes tickets", "glab issue note 1", "glab issue list"),
    row(VendorSyncWrite, "hub", "issue create, issue update", "changes tickets", "hub issue create", "hub issue show"),
    row(VendorSyncWrite, "tea", "issues create, issues edit, issues close, issues reopen, comment, labels create, labels update, labels delete, milestones create", "changes tickets", "tea issues create", "tea issues list"),
    row(VendorSyncWrite, "jira acli go-jira", "create, edit, comment, transition, assign, issue create, issue edit, issue move, issue assign, issue comment add, issue delete, issue link, issue unlink, issue clone, issue watch, issue worklog add, epic create, epic add, epic remove, sprint add, sprint close, jira workitem create, jira workitem edit, jira workitem transition, jira workitem comment", "changes tickets", "jira issue create", "jira issue list"),
    row(VendorSyncWrite, "linear linear-cli lin", "create, update, delete, comment, issue create, issue update, issue delete, issue start, issue comment, issue archive, project create, project update, new", "changes tickets", "linear issue create", "linear issue list"),
    row(VendorSyncWrite, "az", "boards work-item create, boards work-item update, boards work-item delete, boards work-item relation", "changes tickets", "az boards work-item create", "az boards query"),
    row(VendorSyncWrite, "trello asana clickup shortcut youtrack notion bugzilla", "create, add, update, edit, move, delete, comment, close, post", "changes tickets", "trello add x", "trello show x"),
    row(VendorSyncWrite, "sentry-cli", "issues resolve, issues mute, issues unresolve, releases new, releases finalize, releases set-commits, deploys new", "changes what a tracker of errors holds", "sentry-cli issues resolve", "sentry-cli issues list"),
];
