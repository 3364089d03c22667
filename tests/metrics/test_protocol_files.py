import pytest

from pml_ext.metrics import read_lfw_pairs, read_template_media, read_template_pairs, read_template_subjects

LFW = """2\t2
Ann_Lee\t1\t12
Bob\t0003 4
Ann_Lee\t1\tBob\t2
Bob\t1\tCy\t1
Cy\t1\t2
Cy\t1\t3
Cy\t1\tBob\t9
Ann_Lee\t2\tCy\t2
"""


def written(folder, text):
    (folder / "list.txt").write_text(text)
    return folder / "list.txt"


def test_lfw_pairs(tmp_path):
    pairs = read_lfw_pairs(written(tmp_path, LFW + "\n\n"))
    assert pairs.first[:3] == ("Ann_Lee/1", "Bob/3", "Ann_Lee/1")
    assert pairs.second[:3] == ("Ann_Lee/12", "Bob/4", "Bob/2")
    assert pairs.same.tolist() == [True, True, False, False] * 2
    assert pairs.fold_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    development = read_lfw_pairs(written(tmp_path, "1\nAnn 1 2\nAnn 1 Bob 2\n"))
    assert development.fold_ids.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("2\t2", "2 two", 1, "'folds pairs' or 'pairs', positive whole numbers; got '2 two'"),
        ("2\t2", "0 2", 1, "positive whole numbers"),
        ("2\t2", "1 2", 6, "the end after 1 × 2 × 2 pairs; got 'Cy 1 2'"),
        ("Bob\t0003 4", "Bob\t3", 3, "'name n1 n2'; got 'Bob 3'"),
        ("Bob\t0003 4", "Bob\t3 1_0", 3, "'name n1 n2'"),
        ("Bob\t0003 4", "Bob 3 Cy 4", 3, "'name n1 n2'; got 'Bob 3 Cy 4'"),
        ("Bob\t1\tCy\t1", "Bob\t1\tBob\t2", 5, "two different names"),
        ("Bob\t1\tCy\t1", "", 5, "'name1 n1 name2 n2'; got ''"),
    ],
)
def test_malformed_lfw_lists_are_refused_by_line(tmp_path, old, new, line, expected):
    with pytest.raises(ValueError) as error:
        read_lfw_pairs(written(tmp_path, LFW.replace(old, new, 1)))
    assert f"list.txt, line {line}: expected " in str(error.value)
    assert expected in str(error.value)


def test_an_lfw_list_that_ends_early_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected 2 × 2 × 2 pairs; the file ends after 7"):
        read_lfw_pairs(written(tmp_path, LFW[: LFW.rindex("Ann")]))
    with pytest.raises(ValueError, match="line 1: expected 'folds pairs'"):
        read_lfw_pairs(written(tmp_path, ""))


def test_template_lists(tmp_path):
    pairs = read_template_pairs(written(tmp_path, "1 11065 1\n2 123456789012 0\n"))
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([1, 2], [11065, 123456789012])
    assert pairs.same.tolist() == [True, False]
    media = read_template_media(written(tmp_path, "1.jpg 1 69544\nframes/2.png 1 69544\n"))
    assert media.images == ("1.jpg", "frames/2.png")
    assert (media.template_ids.tolist(), media.media_ids.tolist()) == ([1, 1], [69544, 69544])


def test_a_byte_order_mark_is_no_part_of_a_list(tmp_path):
    assert read_lfw_pairs(written(tmp_path, "\ufeff1\nAnn 1 2\nAnn 1 Bob 2\n")).first == ("Ann/1", "Ann/1")
    assert read_template_pairs(written(tmp_path, "\ufeff1 2 1\n")).first.tolist() == [1]
    assert read_template_media(written(tmp_path, "\ufeffa.jpg 1 2\n")).images == ("a.jpg",)


@pytest.mark.parametrize("bad", ["1 2", "1 2 2", "1 2 0 1", "1.5 2 0", f"{10**19} 2 0", "1 ² 0"])
def test_other_template_pairs_are_refused(tmp_path, bad):
    with pytest.raises(ValueError, match=r"list\.txt: expected l"):
        read_template_pairs(written(tmp_path, f"1 2 0\n{bad}\n1 3 1\n"))


@pytest.mark.parametrize("bad", ["a.jpg 1", "a.jpg one 2", "a b.jpg 1 2"])
def test_other_template_media_are_refused(tmp_path, bad):
    with pytest.raises(ValueError, match=r"list\.txt: expected lines 'image template medium'"):
        read_template_media(written(tmp_path, f"a.jpg 1 2\n{bad}\n"))


@pytest.mark.parametrize("read", [read_lfw_pairs, read_template_pairs, read_template_media])
@pytest.mark.parametrize("content", [b"\xb4" * 10, b"1 2 1\0 x", b"1 2 1\n1 \xff 0\n", b"\n"])
def test_what_is_no_list_is_refused(read, content, tmp_path):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"list\.txt.* expected"):
        read(tmp_path / "list.txt")


def test_lists_are_read_by_their_columns(tmp_path):
    path = tmp_path / "ijbc_1N_gallery_G1.csv"
    path.write_text("TEMPLATE_ID,SUBJECT_ID,FILENAME,FACE_X\n9,3,img/1.jpg,1.5\n9,3,frames/2.png,2\n4,1,img/3.jpg,\n")
    found = read_template_subjects(path)
    assert (found.template_ids.tolist(), found.subjects.tolist()) == ([4, 9], [1, 3])
    path.write_text("subject_id, template_id\n3,9\n")
    assert read_template_subjects(path).template_ids.tolist() == [9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TEMPLATE_ID, SUBJECT_ID is missing"),
        ("TEMPLATE_ID,FILENAME\n1,a\n", "SUBJECT_ID is missing"),
        ("TEMPLATE_ID,SUBJECT_ID\n", "expected at least one template"),
        ("TEMPLATE_ID,SUBJECT_ID\n1,2\n1,x\n", r"line 3: expected whole numbers as ids; got \['1', 'x'\]"),
        ("TEMPLATE_ID,SUBJECT_ID\n1\n", "line 2: expected whole numbers"),
        ("TEMPLATE_ID,SUBJECT_ID\n1,2\n1,3\n", "line 3: expected one subject per template; 1 is of 2 and of 3"),
    ],
)
def test_damaged_lists_are_errors(text, message, tmp_path):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_template_subjects(tmp_path / "list.csv")
