//! What the running kernel says about its own types.
//!
//! Just enough of BTF to find the offset of a field and the identity of a function: the programs are built once
//! and patched with these offsets, since the layout of `struct file` and its like changes from kernel to kernel.

use std::fs;
use std::io;
use std::path::Path;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The kernel does not offer its types.
    #[error("cannot read {path}: {error} (the kernel needs CONFIG_DEBUG_INFO_BTF)")]
    Missing {
        /// Where they should be.
        path: &'static str,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The bytes are no BTF.
    #[error("the kernel's type information is malformed at byte {at}")]
    Malformed {
        /// Where reading failed.
        at: usize,
    },
    /// The kernel has no such structure with all of these fields.
    #[error("the running kernel has no struct {name} with the fields {fields:?}")]
    Unknown {
        /// The structure.
        name: &'static str,
        /// The fields.
        fields: Vec<&'static str>,
    },
}

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;

/// The types of a kernel.
pub struct KernelTypes {
    bytes: Vec<u8>,
    strings: usize,
    /// Where each type starts; type 1 is the first.
    types: Vec<usize>,
}

impl KernelTypes {
    /// Reads those of the running kernel.
    ///
    /// # Errors
    /// If the kernel offers none.
    pub fn running() -> Result<Self, BtfError> {
        let path = "/sys/kernel/btf/vmlinux";
        let bytes = fs::read(Path::new(path)).map_err(|error| BtfError::Missing { path, error })?;
        Self::parse(bytes)
    }

    /// Reads BTF in this machine's byte order.
    ///
    /// # Errors
    /// If the bytes are not well formed.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        const MAGIC: u32 = 0xEB9F;
        let word = |at| word(&bytes, at).ok_or(BtfError::Malformed { at });
        if word(0)? & 0xffff != MAGIC {
            return Err(BtfError::Malformed { at: 0 });
        }
        let header = word(4)? as usize;
        let start = header + word(8)? as usize;
        let end = start + word(12)? as usize;
        let strings = header + word(16)? as usize;
        let mut types = Vec::new();
        let mut at = start;
        while at < end {
            let info = word(at + 4)?;
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            types.push(at);
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return Err(BtfError::Malformed { at }),
                };
        }
        Ok(Self { bytes, strings, types })
    }

    /// Byte offsets of `fields` in the structure `name`, those of anonymous members included.
    ///
    /// # Errors
    /// If no structure of that name has all of them; of several with one name the first that has them counts.
    pub fn offsets(&self, name: &'static str, fields: &[&'static str]) -> Result<Vec<u32>, BtfError> {
        let structures = self.types.iter().filter(|at| self.kind(**at) == STRUCT && self.named(**at, name));
        let mut found =
            structures.filter_map(|at| fields.iter().map(|field| self.field(*at, field, 0)).collect());
        found.next().ok_or_else(|| BtfError::Unknown { name, fields: fields.to_vec() })
    }

    /// Type identity of a kernel function, for a program that attaches to it.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<u32> {
        let position =
            self.types.iter().position(|at| self.kind(*at) == FUNCTION && self.named(*at, name))?;
        u32::try_from(position + 1).ok()
    }

    fn field(&self, at: usize, name: &str, depth: u32) -> Option<u32> {
        /// Anonymous structures nest a few levels; a loop in malformed input must end.
        const MAX_DEPTH: u32 = 8;
        let info = word(&self.bytes, at + 4)?;
        let has_bit_fields = info >> 31 == 1;
        for index in 0..(info & 0xffff) as usize {
            let member = at + 12 + 12 * index;
            let bits = word(&self.bytes, member + 8)?;
            let bits = if has_bit_fields { bits & 0x00ff_ffff } else { bits };
            if self.named(member, name) {
                return (bits % 8 == 0).then_some(bits / 8);
            }
            if self.named(member, "") && depth < MAX_DEPTH {
                let inner = word(&self.bytes, member + 4)? as usize;
                let inner = *self.types.get(inner.checked_sub(1)?)?;
                if matches!(self.kind(inner), STRUCT | UNION)
                    && let Some(offset) = self.field(inner, name, depth + 1)
                {
                    return Some(bits / 8 + offset);
                }
            }
        }
        None
    }

    fn kind(&self, at: usize) -> u32 {
        word(&self.bytes, at + 4).map_or(0, |info| info >> 24 & 0x1f)
    }

    /// Whether the record at `at`, which starts with the offset of its name, is called `name`.
    fn named(&self, at: usize, name: &str) -> bool {
        let Some(offset) = word(&self.bytes, at) else { return false };
        let start = self.strings + offset as usize;
        let text = self.bytes.get(start..start + name.len() + 1);
        text.and_then(|text| text.split_last()) == Some((&0, name.as_bytes()))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `struct s { int a; union { int b; struct { int c; int d; }; }; int e : 3; }` and `void f()`.
    fn sample() -> Vec<u8> {
        let strings = b"\0s\0a\0b\0c\0d\0e\0f\0int\0";
        let name = |text: &[u8]| {
            let mut needle = text.to_vec();
            needle.push(0);
            u32::try_from(strings.windows(needle.len()).position(|w| w == needle).expect("in table"))
                .expect("small")
        };
        let bit_fields = 1 << 31;
        let types: Vec<u32> = [
            vec![name(b"int"), 1 << 24, 4, 32],
            vec![0, STRUCT << 24 | 2, 8, name(b"c"), 1, 0, name(b"d"), 1, 32],
            vec![0, UNION << 24 | 2, 8, name(b"b"), 1, 0, 0, 2, 0],
            vec![
                name(b"s"),
                bit_fields | STRUCT << 24 | 3,
                16,
                name(b"a"),
                1,
                0,
                0,
                3,
                32,
                name(b"e"),
                1,
                3 << 24 | 97,
            ],
            vec![name(b"f"), FUNCTION << 24, 0],
        ]
        .concat();
        let length = u32::try_from(types.len() * 4).expect("small");
        let header = [0x0001_EB9F, 24, 0, length, length, u32::try_from(strings.len()).expect("small")];
        let mut bytes: Vec<u8> = header.iter().chain(&types).flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_are_found_through_anonymous_members() {
        let types = KernelTypes::parse(sample()).expect("well formed");
        assert_eq!(types.offsets("s", &["a", "b", "c", "d"]).ok(), Some(vec![0, 4, 4, 8]));
        assert!(types.offsets("s", &["a", "x"]).is_err());
        assert!(types.offsets("s", &["e"]).is_err(), "not at a byte boundary");
        assert!(types.offsets("int", &["a"]).is_err());
        assert_eq!((types.function("f"), types.function("g")), (Some(5), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(at in 0..200_usize, value: u8, cut in 0..220_usize) {
            let mut bytes = sample();
            let length = bytes.len();
            bytes[at % length] = value;
            bytes.truncate(cut);
            if let Ok(types) = KernelTypes::parse(bytes) {
                let _ = types.offsets("s", &["a", "d"]);
            }
        }
    }
}
