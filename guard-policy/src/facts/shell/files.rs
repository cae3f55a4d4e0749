//! Which of a command's words are files that it writes or removes.

use crate::facts::words::Word;

/// How the operands of a program are files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    /// All of them.
    All,
    /// The last one; with one operand, none.
    Last,
    /// All but the first, unless an option brings what the first would.
    AfterFirst,
    /// What stands after `of=`.
    AfterOf,
    /// All of them, if it changes files in place.
    InPlace,
}

/// One line: programs, which operands, options that take the next word, reason.
pub(in crate::facts) struct Row {
    pub(in crate::facts) programs: &'static str,
    operands: Operands,
    values: &'static str,
    pub(in crate::facts) reason: &'static str,
}

const fn row(programs: &'static str, operands: Operands, values: &'static str, reason: &'static str) -> Row {
    Row { programs, operands, values, reason }
}

use Operands::{AfterFirst, AfterOf, All, InPlace, Last};

#[rustfmt::skip]
pub(in crate::facts) const ROWS: &[Row] = &[
    row("rm rmdir unlink shred srm trash trash-put", All, "-n -s", "removes them"),
    row("truncate", All, "-s --size -r --reference", "empties or fills them"),
    row("touch mkdir mkfifo mknod tee sponge", All, "-d -t -r -m --mode --date --reference", "makes or writes them"),
    row("cp mv ln install rsync scp link", Last, "-S -m -o -g -e --suffix --mode --owner --group --rsh --exclude --include --backup-dir", "writes the last one"),
    row("chmod chown chgrp setfacl chattr", AfterFirst, "-m -x --reference --from", "changes their rights"),
    row("dd", AfterOf, "", "writes one"),
    row("sed perl ruby", InPlace, "-e -f --expression --file", "changes them in place"),
];

/// The files that a program changes; nothing if it is none of these.
pub(super) fn changed(program: &str, arguments: &[Word]) -> Option<Vec<Word>> {
    let row = ROWS.iter().find(|row| row.programs.split(' ').any(|known| known == program))?;
    let mut operands = Vec::new();
    let mut options = Vec::new();
    let mut only_operands = false;
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.option().filter(|_| !only_operands) {
            Some("--") => only_operands = true,
            Some(option) => {
                options.push(option);
                if let Some(target) = option.strip_prefix("--target-directory=") {
                    return Some(vec![Word::Known(target.to_owned())]);
                }
                if row.operands == Last && (option == "-t" || option == "--target-directory") {
                    return rest.next().map(|target| vec![target.clone()]);
                } else if row.values.split(' ').any(|value| value == option) {
                    rest.next();
                }
            }
            None => operands.push(word.clone()),
        }
    }
    match row.operands {
        All => Some(operands),
        Last if operands.len() > 1 || operands.contains(&Word::Unknown) => {
            operands.pop().map(|last| vec![last])
        }
        AfterFirst => {
            let skipped = usize::from(!options.iter().any(|option| option.starts_with("--reference")));
            Some(operands.into_iter().skip(skipped).collect())
        }
        AfterOf => {
            let named = operands.into_iter().filter_map(|word| match word {
                Word::Known(text) => text.strip_prefix("of=").map(|file| Word::Known(file.to_owned())),
                Word::Unknown => Some(Word::Unknown),
            });
            Some(named.collect())
        }
        InPlace => {
            let in_place = |option: &&str| {
                option.starts_with("--in-place") || (!option.starts_with("--") && option[1..].contains('i'))
            };
            let script_in_option = options
                .iter()
                .any(|option| ["-e", "-f"].contains(option) || option.starts_with("--expression"));
            options
                .iter()
                .any(in_place)
                .then(|| operands.into_iter().skip(usize::from(!script_in_option)).collect())
        }
        Last => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::words::known;

    #[test]
    fn files_are_told_from_options_and_sources() {
        let table: [(&str, Option<&[&str]>); 17] = [
            ("rm -rf a b", Some(&["a", "b"])),
            ("rm -- -a", Some(&["-a"])),
            ("truncate -s 0 a", Some(&["a"])),
            ("cp -r a b c", Some(&["c"])),
            ("cp -t d a b", Some(&["d"])),
            ("cp --target-directory=d a", Some(&["d"])),
            ("mv a b", Some(&["b"])),
            ("cp a", None),
            ("tee -a o", Some(&["o"])),
            ("chmod -R 700 a b", Some(&["a", "b"])),
            ("chmod --reference=x a", Some(&["a"])),
            ("dd if=a of=b bs=1", Some(&["b"])),
            ("sed -i s/a/b/ f g", Some(&["f", "g"])),
            ("sed -i -e s/a/b/ f", Some(&["f"])),
            ("sed s/a/b/ f", None),
            ("cat a", None),
            ("mkdir -p -m 700 a", Some(&["a"])),
        ];
        for (command, wanted) in table {
            let words = known(command.split(' '));
            let program = words[0].known().expect("a program");
            let found = changed(program, &words[1..]);
            assert_eq!(found, wanted.map(|wanted| known(wanted.iter().copied())), "{command}");
        }
    }
}
