//! The host of a remote that is given as an address, as git reads it.

use crate::value::Host;

/// Schemes that name a host.
const SCHEMES: [&str; 9] = ["https", "http", "ssh", "git", "git+ssh", "ssh+git", "ftp", "ftps", "git+https"];

/// The host, if the text is an address and not a name or a path. What is not surely one is none.
pub(in crate::facts) fn host(remote: &str) -> Option<Host> {
    if remote.chars().any(|character| character.is_control() || character == '\\' || character == ' ') {
        return None;
    }
    // `helper::address` hands the address to a remote helper, which may do anything with it.
    if let Some((helper, address)) = remote.split_once("::")
        && helper.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
    {
        return ["https", "http"].contains(&helper).then(|| host(address)).flatten();
    }
    if let Some((scheme, rest)) = remote.split_once("://") {
        if !SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) {
            return None;
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        return authority_host(authority);
    }
    // `user@host:path`, where no slash stands before the colon.
    let bracketed = remote.split_once('@').map_or(remote, |(_, rest)| rest);
    if bracketed.starts_with('[') {
        return authority_host(remote.split_once("]:").map(|(head, _)| &remote[..=head.len()])?);
    }
    let (head, _) = remote.split_once(':')?;
    if head.is_empty() || head.contains('/') {
        return None;
    }
    authority_host(head)
}

fn authority_host(authority: &str) -> Option<Host> {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => host.split(':').next()?,
    };
    Host::parse(host).ok().filter(|host| !host.raw().starts_with(['/', '@']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_hosts_and_names_have_none() {
        let table = [
            ("https://github.com/a/b", Some("github.com")),
            ("https://token@github.com/a/b.git", Some("github.com")),
            ("https://allowed.com@evil.test/a", Some("evil.test")),
            ("HTTPS://GitHub.com:8443/a", Some("GitHub.com")),
            ("ssh://git@github.com:22/a/b", Some("github.com")),
            ("ssh://git@[::1]:22/a", Some("::1")),
            ("git@github.com:a/b.git", Some("github.com")),
            ("github.com:a/b.git", Some("github.com")),
            ("[::1]:a/b", Some("::1")),
            ("u@[::1]:a/b", Some("::1")),
            ("origin", None),
            ("../bare", None),
            ("/srv/x.git", None),
            ("./a:b", None),
            ("file:///srv/x", None),
            ("ext::sh -c id", None),
            ("ext::https://github.com/a", None),
            ("http::https://github.com/a", Some("github.com")),
            ("https://evil.test\\@github.com/a", None),
            ("https:///a", None),
            ("", None),
        ];
        for (remote, wanted) in table {
            assert_eq!(host(remote).as_ref().map(Host::raw), wanted, "{remote}");
        }
    }
}
