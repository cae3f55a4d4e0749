//! Programs that run other programs, and what their own options are.

use super::super::words::Options;
use super::named;

/// A program that runs a script.
pub(in crate::facts) struct Interpreter {
    /// Names, without a version.
    pub(in crate::facts) names: &'static str,
    /// Options that take the next word; a single letter also ends a cluster.
    pub(in crate::facts) values: &'static str,
    /// Options that bring the program as text.
    pub(in crate::facts) text: &'static str,
    /// The option that names a module instead of a file.
    pub(in crate::facts) module: &'static str,
    /// Options that look a script up by its name.
    pub(in crate::facts) reason: &'static str,
}

#[rustfmt::skip]
pub(in crate::facts) const INTERPRETERS: &[Interpreter] = &[
    Interpreter { names: "python pypy", values: "-W -X -Q --check-hash-based-pycs", text: "-c", module: "-m", reason: "a module by name, or a file" },
    Interpreter { names: "node nodejs", values: "-r --require --import --loader --experimental-loader -C --conditions --env-file --title --inspect-port --max-http-header-size --icu-data-dir --openssl-config --redirect-warnings --trace-event-categories --watch-path --stack-trace-limit --run", text: "-e -p -pe --eval --print", module: "", reason: "a file" },
    Interpreter { names: "bash sh dash ash zsh ksh mksh rbash fish", values: "-o +o -O +O --rcfile --init-file", text: "-c", module: "", reason: "a file, or a text" },
    Interpreter { names: "ruby jruby", values: "-r -I -C -E -F -K --encoding", text: "-e", module: "", reason: "a file; -S looks it up" },
    Interpreter { names: "perl", values: "-I -M -m -F -x", text: "-e -E", module: "", reason: "a file; -S looks it up" },
    Interpreter { names: "php lua luajit Rscript tclsh wish", values: "-d -c -z -S -l", text: "-r -e -B -E", module: "", reason: "a file" },
];

/// A program that starts the program which its operands name.
pub(in crate::facts) struct Wrapper {
    pub(in crate::facts) names: &'static str,
    /// Options that take the next word, or with `=2` the next two.
    pub(in crate::facts) values: &'static str,
    /// Operands before the command.
    pub(in crate::facts) operands: usize,
    /// Words that come first; without them it is no wrapper.
    pub(in crate::facts) verb: &'static str,
    /// Options that bring the command as a text.
    pub(in crate::facts) text: &'static str,
    pub(in crate::facts) reason: &'static str,
    pub(in crate::facts) example: &'static str,
}

const fn wrapper(
    names: &'static str,
    verb: &'static str,
    operands: usize,
    values: &'static str,
    text: &'static str,
    reason: &'static str,
    example: &'static str,
) -> Wrapper {
    Wrapper { names, values, operands, verb, text, reason, example }
}

/// Names, verb, operands before the command, options with a value, options with a text, reason, example with the
/// command `git push`.
#[rustfmt::skip]
pub(in crate::facts) const WRAPPERS: &[Wrapper] = &[
    wrapper("env", "", 0, "-u --unset -C --chdir -a --argv0", "-S --split-string", "with another environment", "env -u A B=c git push"),
    wrapper("sudo", "", 0, "-u -g -C -D -R -T -h -p -r -t -U --user --group --close-from --chdir --chroot --host --prompt --role --type --other-user --command-timeout", "", "as another user", "sudo -u a B=c git push"),
    wrapper("doas", "", 0, "-u -C -a", "", "as another user", "doas -u a git push"),
    wrapper("runuser su", "", 1, "-u -g -G -s -w --user --group --shell --supp-group --whitelist-environment", "-c --command --session-command", "as another user", "su a -c git\\ push"),
    wrapper("gosu su-exec setuidgid chpst softlimit", "", 1, "-u -U -b -/ -n -l -L -m -o -p", "", "as another user, or within limits", "gosu a git push"),
    wrapper("sg", "", 1, "", "-c", "with another group", "sg a git push"),
    wrapper("setpriv capsh", "", 0, "--reuid --regid --groups --inh-caps --ambient-caps --bounding-set --securebits --pdeathsig --selinux-label --apparmor-profile", "-c", "with other rights", "setpriv --reuid 1 git push"),
    wrapper("nice ionice chrt", "", 0, "-n --adjustment -c -p --class --classdata --pid", "", "with another priority", "nice -n 5 git push"),
    wrapper("taskset", "", 1, "", "", "on other processors", "taskset 1 git push"),
    wrapper("prlimit numactl cpulimit cgexec", "", 0, "-g -p -l -e -m -N -C -i -s --pid --limit --membind --cpunodebind --physcpubind --interleave", "", "within limits", "prlimit --nofile=1 git push"),
    wrapper("timeout", "", 1, "-k --kill-after -s --signal", "", "for a while", "timeout -k 1 5 git push"),
    wrapper("nohup setsid disown setarch linux64 linux32 i386 x86_64 catchsegv unbuffer rlwrap chronic ts torsocks torify proxychains proxychains4 xvfb-run dbus-run-session dbus-launch fakeroot eatmydata faketime firejail ltrace", "", 0, "-a -e -f -i -l -s -w -n -o -p -u -b -d -S -H -C", "", "around it", "nohup git push"),
    wrapper("stdbuf", "", 0, "-i -o -e --input --output --error", "", "with other buffers", "stdbuf -oL git push"),
    wrapper("strace", "", 0, "-e -o -p -s -u -E -a -b -I -O -P -S -U -X", "", "watched", "strace -f -o x git push"),
    wrapper("time", "", 0, "-f -o --format --output", "", "measured", "/usr/bin/time -p git push"),
    wrapper("perf", "stat", 0, "-e -o -r -x", "", "measured", "perf stat -e x git push"),
    wrapper("valgrind gdb heaptrack hyperfine", "", 0, "-x -ex -p -w -r --tool --warmup --runs", "", "examined", "valgrind --tool x git push"),
    wrapper("flock", "", 1, "-w -E --timeout --wait --conflict-exit-code", "-c --command", "with a lock", "flock -w 1 x git push"),
    wrapper("xargs", "", 0, "-I -i -L -l -n -P -s -d -E -a --arg-file --delimiter --max-args --max-procs --max-lines --replace --max-chars --process-slot-var", "", "with words from its input", "xargs -n 1 git push"),
    wrapper("parallel", "", 0, "-j -S -a -I -C --jobs --sshlogin --arg-file --colsep", "", "with words from its input", "parallel -j 2 git push"),
    wrapper("watch entr script", "", 0, "-n -d -I -O -B -m --interval", "-c --command", "again and again, or recorded", "watch -n 1 git push"),
    wrapper("chroot", "", 1, "--userspec --groups", "", "below another root", "chroot x git push"),
    wrapper("unshare", "", 0, "-S -G -R -w --setuid --setgid --root --wd --map-user --map-group --propagation --setgroups --kill-child", "", "in other namespaces", "unshare -r git push"),
    wrapper("nsenter", "", 0, "-t -S -G -W --target --setuid --setgid --wdns", "", "in other namespaces", "nsenter -t 1 -m git push"),
    wrapper("systemd-run systemd-inhibit", "", 0, "-p -u -M -H -E -G -t --unit --property --setenv --uid --gid --slice --machine --host --what --who --why --mode --working-directory", "", "by the service manager", "systemd-run -p A=b git push"),
    wrapper("systemd-nspawn bwrap nsjail", "", 0, "-D -M -u --directory --machine --user --bind=2 --ro-bind=2 --dev-bind=2 --symlink=2 --setenv=2 --tmpfs --proc --dev --dir --chdir --unsetenv --hostname --uid --gid --cap-add --cap-drop", "", "in an enclosure", "bwrap --dev-bind / / git push"),
    wrapper("start-stop-daemon daemonize", "", 0, "-a -x -u -p -e -o -c -d --exec --startas --user --pidfile", "", "in the background", "daemonize git push"),
    wrapper("command builtin exec noglob nocorrect coproc then", "", 0, "-a", "", "by the shell", "exec -a x git push"),
    wrapper("poetry pipenv pdm rye hatch uv conda mamba micromamba", "run", 0, "-n -p --name --prefix --project --directory --env-file --with --extra --group -C --python", "", "with a project's environment", "poetry run git push"),
    wrapper("bundle npm pnpm yarn bun corepack", "exec", 0, "-c --call -p --package -w --workspace", "", "with a project's environment", "bundle exec git push"),
    wrapper("direnv", "exec", 1, "", "", "with a directory's environment", "direnv exec . git push"),
    wrapper("mise asdf volta rtx", "exec, run, x", 0, "-C --cd", "", "with a tool's environment", "mise exec -- git push"),
    wrapper("rustup", "run", 1, "", "", "with a toolchain", "rustup run nightly git push"),
    wrapper("nix", "shell -c, shell --command, develop -c, develop --command", 0, "", "", "with an environment", "nix shell x -c git push"),
    wrapper("nix-shell", "", 1, "-p -E -A -I --packages --attr --expr", "--run --command", "with an environment", "nix-shell --run git\\ push"),
    wrapper("git", "bisect run", 0, "", "", "for each step", "git bisect run git push"),
    wrapper("guardctl", "run, mcp", 0, "--agent --workspace --space --mode --mandate --purpose --worktree --profile --rw --ro --hide --env --socket", "", "as an agent", "guardctl run --agent a -- git push"),
];

/// Dynamic loaders, which run what their first operand names in their own process.
pub(in crate::facts) const LOADERS: &[&str] =
    &["ld-linux*", "ld-musl-*", "ld.so", "ld.so.*", "ld64.so*", "ld-2.*"];

/// Programs of which one file holds many, with the option that may name the one.
pub(in crate::facts) const MULTICALL: &[(&str, &str)] =
    &[("busybox", ""), ("toybox", ""), ("coreutils", "--coreutils-prog="), ("uutils", "")];

/// Where the system keeps programs; what lies elsewhere may have been put there by anybody.
pub(in crate::facts) const SYSTEM_PLACES: &[&str] = &[
    "/usr/",
    "/bin/",
    "/sbin/",
    "/lib/",
    "/lib64/",
    "/opt/",
    "/nix/store/",
    "/gnu/store/",
    "/snap/",
    "/home/linuxbrew/",
];

/// Options before the verb, by program.
#[rustfmt::skip]
const OPTIONS: &[(&str, Options)] = &[
    ("git", Options { values: "-C -c --git-dir --work-tree --namespace --config-env --attr-source --super-prefix", flags: "-p -P --paginate --no-pager --no-replace-objects --bare --literal-pathspecs --no-optional-locks --no-advice -v --version -h --help" }),
    ("npm", Options { values: "--prefix -C --registry --loglevel --userconfig --globalconfig --cache -w --workspace --omit --include --tag --otp", flags: "-s --silent -q --quiet -d -dd -ddd -g --global -f --force -y --yes --verbose -ws --workspaces --json -l --long -p --parseable" }),
    ("pip*", Options { values: "--proxy --retries --timeout --exists-action --trusted-host --cert --client-cert --cache-dir --log --python --progress-bar --use-feature --use-deprecated --keyring-provider", flags: "-v --verbose -q --quiet --isolated --require-virtualenv --no-input --debug --no-cache-dir --disable-pip-version-check --no-color --no-python-version-warning -V --version" }),
    ("cargo", Options { values: "-C --color --config -Z", flags: "-v -vv --verbose -q --quiet --locked --offline --frozen -V --version --list" }),
    ("apt*", Options { values: "-o -c -t --option --config-file --target-release --default-release", flags: "-y -q -qq --yes --assume-yes -s --simulate -d -f -u -m --no-install-recommends --allow-downgrades -V" }),
    ("gh", Options { values: "-R --repo --hostname", flags: "--help --version" }),
    ("docker", Options { values: "-H --host -c --context --config -l --log-level --tlscacert --tlscert --tlskey", flags: "-D --debug --tls --tlsverify -v --version" }),
    ("kubectl", Options { values: "-n --namespace --context --cluster --user --kubeconfig -s --server --token --as --as-group --request-timeout -v --v -l --selector -o --output -f --filename", flags: "-A --all-namespaces --insecure-skip-tls-verify" }),
    ("aws", Options { values: "--profile --region --output --endpoint-url --query --color --ca-bundle --cli-read-timeout --cli-connect-timeout", flags: "--debug --no-verify-ssl --no-paginate --no-sign-request --no-cli-pager" }),
    ("systemctl", Options { values: "-H --host -M --machine -t --type -p --property -n --lines -o --output -s --signal --root", flags: "--user --system --now --no-pager -q --quiet --no-block -f --force -a --all -l --full --runtime --no-legend --plain --failed" }),
    ("go", Options { values: "-C", flags: "" }),
    ("zypper", Options { values: "-R --root -D --reposd-dir -C --cache-dir --config -c", flags: "-n --non-interactive -q --quiet -v --verbose --no-refresh --gpg-auto-import-keys" }),
    ("dnf", Options { values: "-c --config --installroot --releasever --enablerepo --disablerepo -x --exclude --setopt --repo -d -e", flags: "-y --assumeyes -q --quiet -v --verbose -C --cacheonly --nogpgcheck --refresh -b --best" }),
    ("apk", Options { values: "-p --root -X --repository --arch --cache-dir --keys-dir --repositories-file --wait", flags: "-q --quiet -v --verbose -U --no-cache --update-cache --allow-untrusted -i --interactive -f --force --no-progress" }),
    ("pnpm", Options { values: "-C --dir --filter -F --reporter --loglevel", flags: "-r --recursive -w --workspace-root --silent -s --offline" }),
    ("yarn", Options { values: "--cwd --cache-folder --registry --use-yarnrc --modules-folder", flags: "-s --silent --offline --verbose --json --non-interactive" }),
    ("uv", Options { values: "--directory --project --cache-dir --config-file --color --python -p --allow-insecure-host", flags: "-q --quiet -v --verbose --offline --no-cache -n --no-config --no-progress --native-tls" }),
];

/// The options of a program, as far as they are known here.
pub(in crate::facts) fn options(program: &str) -> Options {
    OPTIONS.iter().find(|(name, _)| named(name, program)).map(|(_, options)| *options).unwrap_or_default()
}
