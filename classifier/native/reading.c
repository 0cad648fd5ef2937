/* Who said what in a request: what classifier/conversation.py says, compiled. That is the definition.

   It reads what a JSON decoder makes: plain dicts, lists, strings, numbers, booleans and None. At anything else it gives up, and
   Python reads the request. */
#include "features.h"

enum { USER_CAP = 4096, SYSTEM_CAP = 1536, EARLIER_CAP = 1024, SEEN_MESSAGES = 24, SEEN_PARTS = 16, SEEN_IN_ALL = 512, DEPTH = 3, SAMPLE = 256 };

typedef struct {
    PyObject *first, *more; /* texts: one, and a list of all where there are several; NULL for none */
    Py_ssize_t room, patience, chars, images, audio, files, token_ids;
} Reading;

typedef struct {
    Reading system, user, earlier, prefill;
    Py_ssize_t tool_results, turns;
} Conversation;

typedef enum { DONE = 0, FOREIGN = 1, FAILED = -1 } Outcome; /* FOREIGN: something that no JSON decoder makes */

static PyObject *ROLE, *CONTENT, *TYPE, *TEXT, *OUTPUT, *ARGUMENTS, *SYSTEM, *INSTRUCTIONS, *LINE;

int reading_init(void) {
    PyObject **const at[] = {&ROLE, &CONTENT, &TYPE, &TEXT, &OUTPUT, &ARGUMENTS, &SYSTEM, &INSTRUCTIONS, &LINE};
    static const char *const names[] = {"role", "content", "type", "text", "output", "arguments", "system", "instructions", "\n"};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (!*at[i] && !(*at[i] = PyUnicode_InternFromString(names[i]))) return -1;
    return 0;
}

static int is(PyObject *text, const char *word) { return PyUnicode_CompareWithASCIIString(text, word) == 0; }

static int is_plain(PyObject *x) {
    return x == Py_None || PyUnicode_CheckExact(x) || PyDict_CheckExact(x) || PyList_CheckExact(x) || PyLong_CheckExact(x) ||
           PyFloat_CheckExact(x) || PyBool_Check(x);
}

static PyObject *clipped(PyObject *text, Py_ssize_t cap) {
    Py_ssize_t size = PyUnicode_GET_LENGTH(text), tail = cap / 3;
    PyObject *head = PyUnicode_Substring(text, 0, cap - tail - 1), *end = PyUnicode_Substring(text, size - tail, size);
    PyObject *made = head && end ? PyUnicode_FromFormat("%U\n%U", head, end) : NULL;
    Py_XDECREF(head), Py_XDECREF(end);
    return made;
}

/* Keep one more text, whose reference is taken over. */
static Outcome keep(Reading *r, PyObject *text) {
    if (!text) return FAILED;
    if (!r->first) {
        r->first = text;
        return DONE;
    }
    if (!r->more && (r->more = PyList_New(0)) && PyList_Append(r->more, r->first) < 0) Py_CLEAR(r->more);
    int failed = !r->more || PyList_Append(r->more, text) < 0;
    Py_DECREF(text);
    return failed ? FAILED : DONE;
}

static Outcome add(Reading *r, PyObject *text) {
    Py_ssize_t size = PyUnicode_GET_LENGTH(text), room = r->room;
    r->chars += size;
    if (size == 0 || room <= 0) return DONE;
    if (size <= room) {
        r->room -= size;
        return keep(r, Py_NewRef(text));
    }
    r->room = 0;
    return keep(r, clipped(text, room));
}

static PyObject *get(PyObject *dict, PyObject *key) { return PyDict_GetItemWithError(dict, key); } /* borrowed; strings compare without errors */

static Outcome read_content(PyObject *content, Reading *into, int depth);

static Outcome read_part(PyObject *part, Reading *into, int depth) {
    PyObject *kind = get(part, TYPE), *text = get(part, TEXT);
    if ((kind && !is_plain(kind)) || (text && !is_plain(text))) return FOREIGN;
    if (text && PyUnicode_CheckExact(text)) return add(into, text);
    if (!kind || !PyUnicode_CheckExact(kind)) {
        PyObject *content = get(part, CONTENT);
        return depth > 0 && content ? read_content(content, into, depth - 1) : DONE;
    }
    if (is(kind, "image_url") || is(kind, "image") || is(kind, "input_image")) {
        into->images++;
    } else if (is(kind, "input_audio") || is(kind, "audio")) {
        into->audio++;
    } else if (is(kind, "file") || is(kind, "input_file") || is(kind, "document")) {
        into->files++;
    } else if (depth > 0) {
        PyObject *const keys[] = {CONTENT, OUTPUT, ARGUMENTS};
        for (int i = 0; i < 3; i++) {
            PyObject *inner = get(part, keys[i]);
            if (!inner || into->patience <= 0) continue;
            into->patience--;
            Outcome outcome = read_content(inner, into, depth - 1);
            if (outcome != DONE) return outcome;
        }
    }
    return DONE;
}

/* The place of the `i`-th item to look at, of which there are `ends(size, count)`: all, or as many at either end. */
static Py_ssize_t ends(Py_ssize_t size, Py_ssize_t count) { return size <= 2 * count ? size : 2 * count; }
static Py_ssize_t at(Py_ssize_t i, Py_ssize_t size, Py_ssize_t count) { return size <= 2 * count || i < count ? i : size - 2 * count + i; }

static Outcome read_content(PyObject *content, Reading *into, int depth) {
    if (PyUnicode_CheckExact(content)) return add(into, content);
    if (PyDict_CheckExact(content)) return read_part(content, into, depth);
    if (!is_plain(content)) return FOREIGN;
    if (!PyList_CheckExact(content) || depth <= 0) return DONE;
    Py_ssize_t size = PyList_GET_SIZE(content);
    if (size && PyLong_CheckExact(PyList_GET_ITEM(content, 0))) {
        into->token_ids += size;
        return DONE;
    }
    for (Py_ssize_t i = 0; i < ends(size, SEEN_PARTS) && into->patience > 0; i++) {
        into->patience--;
        Outcome outcome = read_content(PyList_GET_ITEM(content, at(i, size, SEEN_PARTS)), into, depth - 1);
        if (outcome != DONE) return outcome;
    }
    return DONE;
}

/* Read one message; `found` says whether the last user turn has been. Newer ones come first. */
static Outcome sort_one(PyObject *item, Conversation *said, int *found) {
    PyObject *role = get(item, ROLE), *kind = get(item, TYPE), *content = get(item, CONTENT);
    if ((role && !is_plain(role)) || (kind && !is_plain(kind))) return FOREIGN;
    int named = role && PyUnicode_CheckExact(role), nobody = !role || role == Py_None, typed = kind && PyUnicode_CheckExact(kind);
    if (!content) content = item;
    if (named && (is(role, "system") || is(role, "developer"))) return read_content(content, &said->system, DEPTH);
    if ((typed && is(kind, "function_call_output")) || (named && (is(role, "tool") || is(role, "function")))) {
        said->tool_results += !*found;
        return read_content(content, &said->earlier, DEPTH);
    }
    if (!*found && ((named && is(role, "user")) || (nobody && !(typed && (is(kind, "function_call") || is(kind, "reasoning")))))) {
        Outcome outcome = read_content(content, &said->user, DEPTH);
        *found = said->user.chars || said->user.token_ids;
        return outcome;
    }
    return read_content(content, !*found && named && is(role, "assistant") ? &said->prefill : &said->earlier, DEPTH);
}

static Outcome read_messages(PyObject *items, Conversation *said) {
    Py_ssize_t size = PyList_GET_SIZE(items);
    int found = 0;
    said->turns = size;
    for (Py_ssize_t i = ends(size, SEEN_MESSAGES) - 1; i >= 0; i--) {
        PyObject *item = PyList_GET_ITEM(items, at(i, size, SEEN_MESSAGES));
        if (!is_plain(item)) return FOREIGN;
        Outcome outcome = PyDict_CheckExact(item) ? sort_one(item, said, &found) : DONE;
        if (outcome != DONE) return outcome;
    }
    return DONE;
}

/* Whether one of the first items is an object, as messages are; FOREIGN at what may be one. */
static int has_messages(PyObject *items) {
    for (Py_ssize_t i = 0; i < 4 && i < PyList_GET_SIZE(items); i++) {
        if (!is_plain(PyList_GET_ITEM(items, i))) return -1;
        if (PyDict_CheckExact(PyList_GET_ITEM(items, i))) return 1;
    }
    return 0;
}

static Outcome read_body(PyObject *body, PyObject *key, Conversation *said) {
    PyObject *const before[] = {SYSTEM, INSTRUCTIONS}, *items = get(body, key);
    for (int i = 0; i < 2; i++) {
        PyObject *content = get(body, before[i]);
        Outcome outcome = content ? read_content(content, &said->system, DEPTH) : DONE;
        if (outcome != DONE) return outcome;
    }
    if (items && PyList_CheckExact(items)) {
        int messages = has_messages(items);
        if (messages) return messages < 0 ? FOREIGN : read_messages(items, said);
    }
    said->turns = items && items != Py_None;
    return items ? read_content(items, &said->user, DEPTH) : DONE;
}

/* A rough count of the prompt's tokens over what was read. */
static double tokens(const Reading *r) {
    double a_token = 4.0;
    if (r->first && !PyUnicode_IS_ASCII(r->first)) {
        Py_ssize_t size = PyUnicode_GET_LENGTH(r->first), bytes = 0;
        if (size > SAMPLE) size = SAMPLE;
        for (Py_ssize_t i = 0; i < size; i++) {
            Py_UCS4 c = PyUnicode_READ_CHAR(r->first, i);
            bytes += c < 0x80 ? 1 : c < 0x800 ? 2 : c >= 0xd800 && c < 0xe000 ? 1 : c < 0x10000 ? 3 : 4;
        }
        double share = (double)(bytes - size) / (double)size;
        a_token -= 2.5 * (share < 1.0 ? share : 1.0);
    }
    return (double)r->chars / a_token + (double)r->token_ids;
}

static PyObject *text(const Reading *r) {
    if (r->more) return PyUnicode_Join(LINE, r->more);
    return r->first ? Py_NewRef(r->first) : PyUnicode_New(0, 0);
}

static PyObject *told(const Conversation *said) {
    const Reading *u = &said->user, *e = &said->earlier;
    double total = tokens(&said->system);
    total += tokens(u), total += tokens(e), total += tokens(&said->prefill);
    Py_ssize_t turns = said->turns < 2 * SEEN_MESSAGES ? said->turns : 2 * SEEN_MESSAGES;
    PyObject *user = text(u), *system = text(&said->system), *earlier = text(e), *prefill = text(&said->prefill), *made = NULL;
    if (user && system && earlier && prefill)
        made = Py_BuildValue("OOOOnnnnnnn", user, system, earlier, prefill, u->chars, said->tool_results, said->turns, u->images + e->images,
                             u->audio + e->audio, u->files + e->files, (Py_ssize_t)total + 4 * turns);
    Py_XDECREF(user), Py_XDECREF(system), Py_XDECREF(earlier), Py_XDECREF(prefill);
    return made;
}

PyObject *conversation(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Conversation said = {.system = {.room = SYSTEM_CAP}, .user = {.room = USER_CAP}, .earlier = {.room = EARLIER_CAP}, .prefill = {.room = EARLIER_CAP}};
    Reading *const all[] = {&said.system, &said.user, &said.earlier, &said.prefill};
    if (count != 2 || !PyDict_CheckExact(args[0]) || !PyUnicode_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a body, which is a dict, and the key of its prompt are needed");
        return NULL;
    }
    for (int i = 0; i < 4; i++) all[i]->patience = SEEN_IN_ALL;
    Outcome outcome = read_body(args[0], args[1], &said);
    PyObject *made = outcome == DONE ? told(&said) : outcome == FOREIGN ? Py_NewRef(Py_None) : NULL;
    if (made && PyErr_Occurred()) Py_CLEAR(made); /* comparing keys of a dict that no decoder made */
    for (int i = 0; i < 4; i++) Py_XDECREF(all[i]->first), Py_XDECREF(all[i]->more);
    return made;
}
