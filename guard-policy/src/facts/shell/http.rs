//! Writes over HTTP: which host is spoken to, and what a write there does (`C-014` … `C-016`).

use guard_common::ActionClass::{self, EnclosureControl, GitPush, PrCreate, PrPublish, VendorSyncWrite};

use crate::facts::git::host_of_url;
use crate::facts::socket::wild;
use crate::facts::words::Word;
use crate::value::Host;

/// One line: class, host, path (`*` stands for any text), reason, an address that is one.
pub(in crate::facts) struct Row {
    pub(in crate::facts) class: ActionClass,
    pub(in crate::facts) host: &'static str,
    pub(in crate::facts) path: &'static str,
    pub(in crate::facts) reason: &'static str,
    pub(in crate::facts) example: &'static str,
}

const fn row(
    class: ActionClass,
    host: &'static str,
    path: &'static str,
    reason: &'static str,
    example: &'static str,
) -> Row {
    Row { class, host, path, reason, example }
}

/// What a request that is no `GET` does; every row that fits counts.
#[rustfmt::skip]
pub(in crate::facts) static ROWS: &[Row] = &[
    row(PrCreate, "api.github.com", "/repos/*/pulls", "opens a pull request", "https://api.github.com/repos/a/b/pulls"),
    row(PrPublish, "api.github.com", "/repos/*/pulls/*", "merges, reviews or changes one", "https://api.github.com/repos/a/b/pulls/1/merge"),
    row(GitPush, "api.github.com", "/repos/*/merges", "merges branches", "https://api.github.com/repos/a/b/merges"),
    row(GitPush, "api.github.com", "/repos/*/git/*", "writes refs and objects", "https://api.github.com/repos/a/b/git/refs"),
    row(GitPush, "api.github.com", "/repos/*/contents/*", "commits to a branch", "https://api.github.com/repos/a/b/contents/x"),
    row(GitPush, "api.github.com", "/repos/*/releases*", "writes a tag", "https://api.github.com/repos/a/b/releases"),
    row(VendorSyncWrite, "api.github.com", "/repos/*/issues*", "changes tickets", "https://api.github.com/repos/a/b/issues/1/comments"),
    row(VendorSyncWrite, "api.github.com", "/repos/*/labels*", "changes what orders tickets", "https://api.github.com/repos/a/b/labels"),
    row(VendorSyncWrite, "api.github.com", "/repos/*/milestones*", "changes what orders tickets", "https://api.github.com/repos/a/b/milestones"),
    row(PrCreate, "api.github.com", "/graphql", "a mutation may open a pull request", "https://api.github.com/graphql"),
    row(PrPublish, "api.github.com", "/graphql*", "a mutation may merge one", "https://api.github.com/graphql"),
    row(VendorSyncWrite, "api.github.com", "*graphql", "a mutation may change tickets", "https://api.github.com/graphql"),
    row(PrCreate, "*gitlab*", "/api/v4/projects/*/merge_requests", "opens a merge request", "https://gitlab.com/api/v4/projects/1/merge_requests"),
    row(PrPublish, "*gitlab*", "/api/v4/projects/*/merge_requests/*", "merges or speaks for the user", "https://gitlab.com/api/v4/projects/1/merge_requests/2/merge"),
    row(VendorSyncWrite, "*gitlab*", "/api/v4/projects/*/issues*", "changes tickets", "https://gitlab.com/api/v4/projects/1/issues"),
    row(GitPush, "*gitlab*", "/api/v4/projects/*/repository/*", "writes refs and objects", "https://gitlab.com/api/v4/projects/1/repository/branches"),
    row(PrCreate, "api.bitbucket.org", "/2.0/repositories/*/pullrequests", "opens a pull request", "https://api.bitbucket.org/2.0/repositories/a/b/pullrequests"),
    row(PrPublish, "api.bitbucket.org", "/2.0/repositories/*/pullrequests/*", "merges or speaks for the user", "https://api.bitbucket.org/2.0/repositories/a/b/pullrequests/1/merge"),
    row(PrCreate, "*", "/api/v1/repos/*/pulls", "opens a pull request at Gitea or Forgejo", "https://codeberg.org/api/v1/repos/a/b/pulls"),
    row(PrPublish, "*", "/api/v1/repos/*/pulls/*", "merges or speaks for the user there", "https://codeberg.org/api/v1/repos/a/b/pulls/1/merge"),
    row(VendorSyncWrite, "*", "/api/v1/repos/*/issues*", "changes tickets there", "https://codeberg.org/api/v1/repos/a/b/issues"),
    row(VendorSyncWrite, "api.linear.app", "*", "changes tickets", "https://api.linear.app/graphql"),
    row(VendorSyncWrite, "*.atlassian.net", "/rest/*", "changes tickets", "https://a.atlassian.net/rest/api/3/issue"),
    row(VendorSyncWrite, "*jira*", "/rest/*", "changes tickets", "https://jira.example.org/rest/api/2/issue"),
    row(VendorSyncWrite, "api.trello.com", "*", "changes tickets", "https://api.trello.com/1/cards"),
    row(VendorSyncWrite, "app.asana.com", "*", "changes tickets", "https://app.asana.com/api/1.0/tasks"),
    row(VendorSyncWrite, "api.clickup.com", "*", "changes tickets", "https://api.clickup.com/api/v2/list/1/task"),
    row(VendorSyncWrite, "api.app.shortcut.com", "*", "changes tickets", "https://api.app.shortcut.com/api/v3/stories"),
    row(VendorSyncWrite, "*.youtrack.cloud", "*", "changes tickets", "https://a.youtrack.cloud/api/issues"),
    row(VendorSyncWrite, "api.notion.com", "*", "changes tickets", "https://api.notion.com/v1/pages"),
    row(VendorSyncWrite, "dev.azure.com", "*/_apis/wit/*", "changes tickets", "https://dev.azure.com/a/b/_apis/wit/workitems/1"),
    row(PrCreate, "dev.azure.com", "*/_apis/git/*/pullrequests*", "opens or changes a pull request", "https://dev.azure.com/a/b/_apis/git/repositories/c/pullrequests"),
    row(EnclosureControl, "localhost", "/containers/*", "drives a container engine", "http://localhost/containers/create"),
    row(EnclosureControl, "*", "/v1.*/containers/*", "drives a container engine", "http://x/v1.43/containers/create"),
];

/// What a write to this address does; the path without its query.
pub(super) fn written(host: &str, path: &str) -> impl Iterator<Item = ActionClass> {
    let host = host.to_ascii_lowercase();
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/').to_owned();
    ROWS.iter().filter(move |row| wild(row.host, &host) && wild(row.path, &path)).map(|row| row.class)
}

/// Host and path of an address; `bare` takes one without a scheme, too.
pub(super) fn address(text: &str, bare: bool) -> Option<(Host, String)> {
    let full = match text.split_once("://") {
        Some(_) => text.to_owned(),
        None if bare => format!("http://{text}"),
        None => return None,
    };
    let host = host_of_url(&full)?;
    let (_, rest) = full.split_once("://")?;
    let path = rest.find('/').map_or("/", |at| &rest[at..]);
    Some((host, path.to_owned()))
}

/// What a client of HTTP is told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Call {
    /// Hosts; `None` where not all are known.
    pub(super) hosts: Option<Vec<Host>>,
    pub(super) classes: Vec<ActionClass>,
    /// Files that it sends or writes.
    pub(super) reads: Vec<Word>,
    pub(super) writes: Vec<Word>,
}

/// Options of curl and wget that take the next word.
const VALUES: &str = "-X --request -d --data --data-raw --data-binary --data-urlencode --data-ascii --json -F --form -T \
    --upload-file -o --output -H --header -A --user-agent -u --user -b --cookie -c --cookie-jar -e --referer -m --max-time \
    --connect-timeout --retry -w --write-out -x --proxy -K --config --resolve --connect-to -E --cert --key --cacert \
    -O --output-document -P --directory-prefix --post-data --post-file --body-data --body-file --method --header \
    -i --input-file -U -t -T -Q --limit-rate --interface --unix-socket --abstract-unix-socket -r --range --url \
    --output-dir --netrc-file --oauth2-bearer --ciphers --form-string -C --continue-at -D --dump-header --trace --trace-ascii";

/// Whether an option takes the next word; `-O` and `-i` do so for wget only.
fn takes_value(option: &str, is_wget: bool) -> bool {
    VALUES.split_whitespace().any(|valued| valued == option) && (is_wget || !["-O", "-i"].contains(&option))
}

/// Reads the words after `curl` or `wget`.
pub(super) fn client(program: &str, arguments: &[Word]) -> Call {
    let is_wget = program.starts_with("wget");
    let mut call = Call { hosts: Some(Vec::new()), ..Call::default() };
    let mut addresses = Vec::new();
    let mut method: Option<String> = None;
    let mut body = false;
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let Some(text) = word.known() else {
            call.hosts = None;
            body = true;
            continue;
        };
        let Some(_) = word.option() else {
            addresses.push(text.to_owned());
            continue;
        };
        let (name, mut value) = match text.split_once('=').filter(|_| text.starts_with("--")) {
            Some((name, value)) => (name.to_owned(), Some(Word::Known(value.to_owned()))),
            // A letter with its value attached, which may be the end of a cluster.
            None if !text.starts_with("--") => {
                let valued = text
                    .char_indices()
                    .skip(1)
                    .find(|(_, letter)| takes_value(&format!("-{letter}"), is_wget));
                match valued {
                    Some((at, letter)) if at + letter.len_utf8() < text.len() => {
                        (format!("-{letter}"), Some(Word::Known(text[at + letter.len_utf8()..].to_owned())))
                    }
                    Some((_, letter)) => (format!("-{letter}"), None),
                    None => (text.to_owned(), None),
                }
            }
            None => (text.to_owned(), None),
        };
        let takes = takes_value(&name, is_wget);
        if takes && value.is_none() {
            value = rest.next().cloned();
        }
        let known = value.as_ref().and_then(Word::known);
        match name.as_str() {
            "-X" | "--request" | "--method" => {
                method = Some(known.unwrap_or("POST").to_ascii_uppercase());
            }
            "-T" | "--upload-file" if !is_wget => {
                body = true;
                call.reads.extend(value);
            }
            "--post-file" | "--body-file" => {
                body = true;
                call.reads.extend(value);
            }
            "-d" | "--data" | "--data-binary" | "--data-urlencode" | "--data-ascii" | "--json" | "-F"
            | "--form" => {
                body = true;
                let file = known.and_then(|text| text.split_once('@')).map(|(_, file)| file);
                call.reads
                    .extend(file.map(|file| Word::Known(file.split(';').next().unwrap_or(file).to_owned())));
            }
            "--data-raw" | "--form-string" | "--post-data" | "--body-data" => body = true,
            "-o" | "--output" | "-O" | "--output-document" | "-P" | "--directory-prefix" | "--output-dir"
            | "-c" | "--cookie-jar" | "-D" | "--dump-header" | "--trace" | "--trace-ascii"
                if takes =>
            {
                call.writes.extend(value);
            }
            "--url" => addresses.extend(known.map(str::to_owned)),
            // Where these say that it goes, the address does not say it any more.
            "-i" if !is_wget => {}
            "-x"
            | "--proxy"
            | "-K"
            | "--config"
            | "--resolve"
            | "--connect-to"
            | "-i"
            | "--input-file"
            | "--unix-socket"
            | "--abstract-unix-socket"
            | "--preproxy"
            | "--socks5"
            | "--socks5-hostname" => {
                call.hosts = None;
            }
            _ => {}
        }
    }
    let writes = method.as_deref().map_or(body, |method| !["GET", "HEAD", "OPTIONS"].contains(&method));
    for text in &addresses {
        // Braces and brackets stand for several addresses.
        match address(text, true).filter(|_| !text.contains(['{', '['])) {
            Some((host, path)) => {
                if writes {
                    call.classes.extend(written(host.raw(), &path));
                }
                if let Some(hosts) = &mut call.hosts {
                    hosts.push(host);
                }
            }
            None => call.hosts = None,
        }
    }
    call.hosts = call.hosts.filter(|hosts| !hosts.is_empty());
    call
}

/// Reads the words after `gh api` and `glab api`.
pub(super) fn forge(program: &str, arguments: &[Word]) -> Vec<ActionClass> {
    let mut method = None;
    let mut body = false;
    let mut path = None;
    let mut rest = arguments.iter();
    let host = if program == "gh" { "api.github.com" } else { "gitlab" };
    while let Some(word) = rest.next() {
        let Some(text) = word.known() else {
            body = true;
            continue;
        };
        if word.option().is_none() {
            path.get_or_insert_with(|| text.trim_start_matches('/').to_owned());
            continue;
        }
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let attached = |letter: &str| text.strip_prefix(letter).filter(|rest| !rest.is_empty());
        match name {
            "-X" | "--method" => {
                method = value.or_else(|| rest.next().and_then(Word::known)).map(str::to_owned)
            }
            "-f" | "-F" | "--field" | "--raw-field" | "--form" | "--input" => {
                body = true;
                if value.is_none() {
                    rest.next();
                }
            }
            "-H" | "--header" | "-q" | "--jq" | "-t" | "--template" | "--hostname" | "-p" | "--preview"
            | "--cache"
                if value.is_none() =>
            {
                _ = rest.next()
            }
            _ if attached("-X").is_some() && !text.starts_with("--") => {
                method = attached("-X").map(str::to_owned)
            }
            _ if text.starts_with("-f") || text.starts_with("-F") => body = true,
            _ => {}
        }
    }
    let writes =
        method.map_or(body, |method| !["GET", "HEAD"].contains(&method.to_ascii_uppercase().as_str()));
    if !writes {
        return Vec::new();
    }
    let prefix = if program == "gh" { "" } else { "/api/v4" };
    match path {
        Some(path) => written(host, &format!("{prefix}/{path}")).collect(),
        // What is written is not known.
        None => vec![PrCreate, PrPublish, VendorSyncWrite],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::words::known;

    /// `C-014` … `C-016`: every row holds for its own example, and a read there is none.
    #[test]
    fn every_row_holds_for_its_own_example() {
        for row in ROWS {
            let (host, path) = address(row.example, false).expect(row.example);
            assert!(written(host.raw(), &path).any(|class| class == row.class), "{}", row.example);
            assert!(wild(row.host, host.raw()) && wild(row.path, &path), "{}", row.example);
            let write = client("curl", &known(["-XPOST", row.example]));
            assert!(write.classes.contains(&row.class), "{}", row.example);
            assert_eq!(client("curl", &known([row.example])).classes, [], "{}", row.example);
            assert!(row.reason.len() > 3);
        }
    }

    #[test]
    fn clients_say_where_they_go() {
        let table: [(&str, Option<&[&str]>); 12] = [
            ("curl https://example.org/a", Some(&["example.org"])),
            ("curl -sSL -o x example.org/a", Some(&["example.org"])),
            ("curl -O https://example.org/a", Some(&["example.org"])),
            ("curl -i https://example.org/a", Some(&["example.org"])),
            ("curl --url https://example.org/a", Some(&["example.org"])),
            ("curl -d @x https://a.test https://b.test", Some(&["a.test", "b.test"])),
            ("curl -x proxy.test https://a.test", None),
            ("curl --resolve a.test:1:2 https://a.test", None),
            ("curl https://{a,b}.test", None),
            ("curl", None),
            ("wget -qO- https://a.test", Some(&["a.test"])),
            ("wget -i list", None),
        ];
        for (command, wanted) in table {
            let words = known(command.split(' '));
            let call = client(words[0].known().expect("a program"), &words[1..]);
            let hosts = call.hosts.as_ref().map(|hosts| hosts.iter().map(Host::raw).collect::<Vec<_>>());
            assert_eq!(hosts.as_deref(), wanted, "{command}");
        }
        assert_eq!(client("curl", &[Word::Unknown]).hosts, None);
    }

    #[test]
    fn forges_are_written_to() {
        let table: [(&str, &[ActionClass]); 8] = [
            ("repos/a/b/pulls", &[]),
            ("repos/a/b/pulls -f title=x", &[PrCreate]),
            ("-X PUT repos/a/b/pulls/1/merge", &[PrPublish]),
            ("-XPATCH /repos/a/b/issues/1", &[VendorSyncWrite]),
            ("--method GET repos/a/b/issues -f state=all", &[]),
            ("graphql -f query=x", &[PrCreate, PrPublish, VendorSyncWrite]),
            ("repos/a/b/git/refs --input x", &[GitPush]),
            ("user", &[]),
        ];
        for (arguments, wanted) in table {
            assert_eq!(forge("gh", &known(arguments.split(' '))), wanted, "{arguments}");
        }
        assert_eq!(forge("glab", &known(["projects/1/issues", "-f", "x=y"])), [VendorSyncWrite]);
    }
}
