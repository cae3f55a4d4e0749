//! A command line: it is read or refused, in little time and depth, and each command in it is no worse than itself alone.

#![no_main]

use guard_common::ActionClass;
use guard_policy::facts::{Word, shell};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (read, commands) = (shell::read(&text), shell::commands(&text));
    let (Ok(facts), Ok(commands)) = (read, commands) else { return };
    assert!(commands.len() <= shell::MAX_COMMANDS);
    // A word that is known and stands first is a program that starts.
    for words in &commands {
        if let Some(Word::Known(name)) = words.first()
            && name == "rm"
        {
            assert!(facts.action.classes.contains(&ActionClass::FileDelete));
        }
    }
    // Reading twice is reading once, and what comes after hides nothing of what came before.
    assert_eq!(shell::read(&text).as_ref(), Ok(&facts));
    if let Ok(longer) = shell::read(&format!("rm -r x\n{text}")) {
        for class in &facts.action.classes {
            assert!(longer.action.classes.contains(class));
        }
        assert!(longer.action.classes.contains(&ActionClass::FileDelete));
    }
});
