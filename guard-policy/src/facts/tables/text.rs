//! Rows for texts only. When a command runs, the kernel reports the file, the socket and the process themselves, so
//! these programs have no class of their own there: `rm` is no deletion, the unlink that it does is (`R-70`).

use guard_common::ActionClass::{FileDelete, NetworkEgress, PackageInstall, ProcessSpawn, WorkspaceMutation};

use super::{Row, row};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(FileDelete, "rm rmdir unlink shred srm trash trash-put", "", "removes files", "rm -fr x", ""),
    row(FileDelete, "truncate", "", "empties files", "truncate -s 0 x", ""),
    row(FileDelete, "find", "^delete", "removes what it finds", "find . -delete", "find . -name x"),
    row(FileDelete, "rsync", "--delete, --delete-after, --delete-before, --delete-during, --delete-excluded, --remove-source-files", "removes what the source lacks", "rsync -a --delete x y", "rsync -a x y"),
    row(FileDelete, "git", "clean !-n !--dry-run, rm !--cached !-n, reset --hard, restore ? !--staged, checkout -f, checkout --force, switch -f, switch --discard-changes, worktree remove, worktree prune", "removes files, or work that is in no commit", "git -C x clean -fdx", "git clean -n"),
    row(FileDelete, "mv", "-f ??, ?? !-n", "may put a file in another one's place", "mv a b", "mv -n a b"),
    row(NetworkEgress, "curl wget wget2 aria2c http https xh httpie lynx w3m links elinks", "", "talks to another machine", "curl x", ""),
    row(NetworkEgress, "ssh scp sftp rsync-ssl mosh autossh sshfs ftp lftp tftp telnet nc ncat netcat socat openssl-client", "", "talks to another machine", "ssh x", ""),
    row(NetworkEgress, "dig nslookup host drill ping ping6 traceroute tracepath mtr nmap whois", "", "talks to another machine, if only to ask for a name", "dig x", ""),
    row(NetworkEgress, "openssl", "s_client, ocsp, s_time", "talks to another machine", "openssl s_client x", "openssl rand 1"),
    row(NetworkEgress, "gh glab hub tea jira linear rclone restic borg aws gcloud az gsutil s3cmd mc fly flyctl heroku vercel netlify wrangler", "", "talks to a service", "gh status", ""),
    row(NetworkEgress, "git", "push, fetch, pull, clone, ls-remote, submodule update, submodule add, remote update, remote show, archive --remote, send-email, imap-send, lfs, svn, p4, fetch-pack, send-pack, http-push, http-fetch, remote-http, remote-https", "talks to a remote", "git ls-remote x", "git log"),
    row(NetworkEgress, "psql mysql mariadb mongosh redis-cli sqlcmd clickhouse-client", "-h, --host, -H, -u", "talks to a database, which may be elsewhere", "psql -h x", "psql --version"),
    row(NetworkEgress, "sendmail mail mailx mutt msmtp swaks", "", "sends mail", "mail x", ""),
    row(PackageInstall, "make cmake ninja", "install", "installs what was built", "make install", "make all"),
    row(WorkspaceMutation, "guardctl", "run, kill, freeze, thaw, net-cut, config, policy, approvals answer, sandbox", "drives guard itself", "guardctl kill --all", "guardctl ps"),
    row(ProcessSpawn, "eval exec source .", "", "the shell runs what it is given", "eval x", ""),
];
